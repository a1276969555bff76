#!/usr/bin/env python3
"""The peer of LoRA on one GPU: a Llama of transformers with PEFT's adapters on all linear layers, bf16, random weights.

A step is `accum` micro-batches, a backward each, clipping and AdamW on the adapters, as a user writes it without Trainer's
overhead. Variants: eager; compiled (each decoder layer by torch.compile). The loss takes the logits of one micro-batch
whole, as transformers does. Times: CUDA events at the ends of steps. Prints one JSON object."""
import argparse
import json
import statistics
import time

import torch

MODELS = {
    "8b": dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
               num_key_value_heads=8, max_position_embeddings=4096, tie_word_embeddings=False),
    "tiny": dict(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False),
}


def main():
    began = time.monotonic()
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--model", choices=MODELS, default="8b")
    a.add_argument("--variant", choices=["eager", "compiled"], default="eager")
    a.add_argument("--seq", type=int, default=4096)
    a.add_argument("--accum", type=int, default=4)
    a.add_argument("--rank", type=int, default=16)
    a.add_argument("--steps", type=int, default=8, help="the first three are not counted")
    a.add_argument("--recompute", action="store_true", help="gradient checkpointing, as most recipes of peers have it")
    o = a.parse_args()
    import peft
    import transformers
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = MODELS[o.model]
    seq = min(o.seq, shape["max_position_embeddings"])
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, attn_implementation="sdpa"))
    torch.set_default_dtype(torch.float32)
    model.config.use_cache = False
    if o.recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    model = peft.get_peft_model(model, peft.LoraConfig(r=o.rank, lora_alpha=2 * o.rank, target_modules="all-linear"))
    trained = [p for p in model.parameters() if p.requires_grad]
    if o.variant == "compiled":
        for layer in model.base_model.model.model.layers:
            layer.compile()
    optimizer = torch.optim.AdamW(trained, lr=2e-4, fused=device == "cuda")
    model.train()
    tokens = torch.randint(shape["vocab_size"], (o.steps * o.accum, 1, seq), device=device)
    marks, losses = [], []
    for step in range(o.steps):
        for n in range(o.accum):
            row = tokens[step * o.accum + n]
            with torch.autocast(device, torch.bfloat16):
                loss = model(input_ids=row, labels=row).loss / o.accum
            loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach() * o.accum)
        if device == "cuda":
            marks.append(torch.cuda.Event(enable_timing=True))
            marks[-1].record()
        else:
            marks.append(time.monotonic())
    if device == "cuda":
        torch.cuda.synchronize()
        times = [x.elapsed_time(y) for x, y in zip(marks, marks[1:])]
    else:
        times = [1e3 * (y - x) for x, y in zip(marks, marks[1:])]
    step_ms = statistics.median(times[2:])
    print(json.dumps({"model": o.model, "variant": o.variant + (" with recomputation" if o.recompute else ""),
                      "step_ms": round(step_ms, 2), "steps_ms": [round(x, 2) for x in times],
                      "tokens_per_sec": round(seq * o.accum / step_ms * 1e3), "losses": [round(float(x), 4) for x in losses],
                      "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if device == "cuda" else None,
                      "trained": sum(p.numel() for p in trained), "torch": torch.__version__,
                      "transformers": transformers.__version__, "peft": peft.__version__,
                      "seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
