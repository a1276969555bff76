#!/usr/bin/env python3
"""Writes tests/golden/distillation: a tiny Llama as the teacher of that in tests/golden/trl, prompts with completions,
and the first 20 losses of PyTorch that ltrain must have. The divergence is that of TRL's DistillationTrainer (beta 0, on
transformers' hidden states), compared here with torch's kl_div. All completions are one batch."""
import json
import sys

from golden_tools import GOLDEN, run_with

PACKAGES = ["trl==1.16.0", "transformers==5.24.0", "torch"]
FOLDER, STUDENT = GOLDEN / "distillation", GOLDEN / "trl"
STEPS = 20
SETTINGS = {"lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "clip": 1.0}
RUNS = {
    "half": {"kd_ratio": 0.5, "temperature": 1.0},
    "warm": {"kd_ratio": 0.7, "temperature": 2.0},
    "teacher alone": {"kd_ratio": 1.0, "temperature": 3.0},
}
END = 256  # the byte tokenizer's end of a text


def rows():
    for i in range(8):
        yield {"prompt": f"After {i} come:", "completion": " " + ", ".join(str(i + k) for k in range(1, 3 + i % 3)) + "."}


def batch():
    """Inputs, and targets of the next token, -100 in prompts and padding."""
    import torch

    texts = [(r["prompt"].encode(), r["completion"].encode()) for r in rows()]
    length = max(len(p) + len(c) for p, c in texts)
    inputs = torch.full((len(texts), length), END)
    targets = torch.full((len(texts), length), -100)
    for i, (prompt, completion) in enumerate(texts):
        ids = torch.tensor(list(prompt + completion) + [END])
        inputs[i, :len(ids) - 1] = ids[:-1]
        targets[i, len(prompt) - 1:len(ids) - 1] = ids[len(prompt):]
    return inputs, targets


def teacher_model():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(11)
    config = LlamaConfig(vocab_size=257, hidden_size=40, intermediate_size=64, num_hidden_layers=3, num_attention_heads=5,
                         num_key_value_heads=1, max_position_embeddings=256, initializer_range=0.2, tie_word_embeddings=True,
                         bos_token_id=None, eos_token_id=END, attention_dropout=0.0)
    return LlamaForCausalLM(config).to(torch.float32)


def divergence(student, teacher, temperature, reverse=False):
    """KL(teacher || student) of each row; reverse: the other way round."""
    s, t = (x / temperature for x in ((teacher, student) if reverse else (student, teacher)))
    t = t.log_softmax(-1)
    return (t.exp() * (t - s.log_softmax(-1))).sum(-1)


def train(teacher, kd_ratio, temperature):
    import torch
    from transformers import LlamaForCausalLM
    from trl.trainer.distillation_trainer import _chunked_divergence_loss

    torch.manual_seed(1)
    student = LlamaForCausalLM.from_pretrained(STUDENT, dtype=torch.float32)
    adamw = torch.optim.AdamW(student.parameters(), lr=SETTINGS["lr"], betas=(SETTINGS["beta1"], SETTINGS["beta2"]),
                              eps=SETTINGS["eps"], weight_decay=0.0)
    inputs, targets = batch()
    counted = targets >= 0
    steps = []
    for _ in range(STEPS):
        with torch.no_grad():
            taught = teacher.model(input_ids=inputs).last_hidden_state
            taught_logits = teacher.lm_head(taught)
        hidden = student.model(input_ids=inputs).last_hidden_state
        logits = student.lm_head(hidden)
        ce = torch.nn.functional.cross_entropy(logits[counted], targets[counted])
        kl = _chunked_divergence_loss(hidden, taught, student.lm_head.weight, teacher.lm_head.weight, counted, 0.0,
                                      num_items_in_batch=counted.sum(), temperature=temperature)[0]
        own = divergence(logits, taught_logits, temperature)
        assert torch.allclose(kl, own[counted].mean(), rtol=1e-5), (kl, own[counted].mean())
        of = lambda k: float(((1 - kd_ratio) * ce + kd_ratio * k).detach().double())  # noqa: E731
        square = temperature**2
        loss = (1 - kd_ratio) * ce + kd_ratio * square * kl
        adamw.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), SETTINGS["clip"])
        adamw.step()
        step = {"loss": float(loss.detach().double()), "ce": float(ce.detach().double()), "kl": float(kl.detach().double()),
                "grad_norm": float(norm)}
        # Losses of likely mistakes, from which the test wants the first step to differ.
        back = divergence(logits, taught_logits, temperature, reverse=True)
        step["mistakes"] = {"no square": of(kl), "reverse": of(square * back[counted].mean()),
                            "all tokens": of(square * own.mean())}
        steps.append(step)
    return steps


def main():
    run_with(PACKAGES, __file__)
    import torch
    import transformers
    import trl

    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    teacher_model().save_pretrained(FOLDER, safe_serialization=True)
    (FOLDER / "generation_config.json").unlink(missing_ok=True)
    (FOLDER / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    teacher = transformers.LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    result = {"versions": {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__},
              "settings": SETTINGS, "tokens": int((batch()[1] >= 0).sum()), "runs": {}}
    for name, options in RUNS.items():
        result["runs"][name] = {"options": options, "steps": train(teacher, **options)}
    (FOLDER / "losses.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
