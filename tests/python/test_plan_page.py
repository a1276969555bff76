"""ltrain plan --html and ltrain report --html in a browser without a window: everything is laid out inside its drawing, and nothing is asked of
any host."""
import json
import re
import shutil
import subprocess

import pytest

from conftest import ltrain

BROWSER = next((b for b in ("chromium", "chromium-browser", "google-chrome") if shutil.which(b)), None)
RECIPE = """
name: page
device: cuda
precision: bf16
model: {architecture: llama, vocab_size: 32000, hidden_size: 1024, intermediate_size: 2816, num_hidden_layers: 8,
        num_attention_heads: 16, num_key_value_heads: 8, max_position_embeddings: 4096}
data: {seq_length: 2048}
train: {global_batch_size: 32, train_steps: 10}
"""
# Put into a copy of the page, which itself has no scripts and forbids them.
LOOK = """<script>
const outside = [], drawings = {};
for (const h of document.querySelectorAll('h2[id]')) {
  const svg = h.nextElementSibling.querySelector('svg');
  if (!svg) continue;
  const frame = svg.getBoundingClientRect();
  drawings[h.id] = {width: frame.width, height: frame.height, boxes: svg.querySelectorAll('rect,circle').length};
  for (const e of svg.querySelectorAll('text,rect,circle')) {
    const b = e.getBoundingClientRect();
    if (b.left < frame.left - 1 || b.right > frame.right + 1 || b.top < frame.top - 1 || b.bottom > frame.bottom + 1)
      outside.push(h.id + ': ' + e.outerHTML.slice(0, 200));
  }
}
const look = document.createElement('pre');
look.id = 'look';
look.textContent = JSON.stringify({outside, drawings, loaded: performance.getEntriesByType('resource').length});
document.body.append(look);
</script>"""


def look(page, folder):
    """What a browser sees of the page."""
    text = page.read_text()
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text, count=1)
    copy = folder / "look.html"
    copy.write_text(text.replace("</body>", LOOK + "</body>"))
    run = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/browser",
                          "--virtual-time-budget=10000", "--dump-dom", copy.as_uri()],
                         capture_output=True, text=True, check=True, timeout=120)
    found = re.search(r'<pre id="look">(.*?)</pre>', run.stdout, re.S)
    assert found, run.stderr[-2000:]
    unescape = found.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return json.loads(unescape)


@pytest.fixture
def recipe(tmp_path):
    if not BROWSER:
        print("SKIPPED: the page of a plan in a browser: no chromium here")
        pytest.skip("no chromium here")
    path = tmp_path / "page.yaml"
    path.write_text(RECIPE)
    return path


@pytest.mark.parametrize("options, drawings", [
    (["--world", "16", "parallel.data=16"], {"memory", "timeline", "detail", "map"}),
    (["--world", "64", "parallel.pipeline=4", "parallel.tensor=4", "parallel.context=2"],
     {"memory", "timeline", "detail", "schedule", "map"}),
    (["--search", "--gpus", "16"], {"search", "memory", "timeline", "detail", "map"}),
])
def test_page(recipe, tmp_path, options, drawings):
    page = tmp_path / "page.html"
    run = ltrain("plan", str(recipe), "--profile", "h100", "--html", str(page), *options)
    assert run.returncode == 0, run.stderr
    seen = look(page, tmp_path)
    assert seen["outside"] == []
    assert seen["loaded"] == 0
    assert drawings <= set(seen["drawings"])
    for name, drawing in seen["drawings"].items():
        assert drawing["width"] > 300 and drawing["height"] > 80 and drawing["boxes"] > 5, name


def test_a_text_that_leaves_its_drawing_is_seen(recipe, tmp_path):
    """The negative control."""
    page = tmp_path / "page.html"
    assert ltrain("plan", str(recipe), "--profile", "h100", "--html", str(page), "--world", "16",
                  "parallel.data=16").returncode == 0
    page.write_text(page.read_text().replace('<text x="8.0"', '<text x="-80.0"', 1))
    assert look(page, tmp_path)["outside"]


def test_page_of_a_run(tmp_path):
    if not BROWSER:
        print("SKIPPED: the page of a run in a browser: no chromium here")
        pytest.skip("no chromium here")
    lines = []
    for step in range(1, 401):
        if step == 200:
            lines.append({"step": 150, "restart": 1, "max_restarts": 5, "lost_steps": 3, "reason": "rank 1 died <b>"})
        lines.append({"step": step, "lm_loss": 5 - step / 100, "grad_norm": 1 + 1 / step, "tokens_per_sec": 1e5,
                      "mfu": 0.4, "step_time_ms": 12.0, "data_time_ms": 1.0, "exposed_comm_ms/dp": 2.0,
                      "exposed_comm_ms/tp": 1.5, "mem_peak_gib": 10.5, "mem_plan_gib": 10.75, "consumed_tokens": step,
                      "expert_tokens": [[], [4, 4, 8, 0]], "drop_rate_by_layer": [None, 0.1], "drop_rate": 0.1,
                      "balance_loss": 0.01})
        if step % 100 == 0:
            lines.append({"step": step, "eval_loss": 5.1 - step / 100})
        if step % 50 == 0:
            lines.append({"step": step, "routing_churn": None if step == 50 else 5 / step,
                          "routing_churn_by_layer": [None, None if step == 50 else 5 / step]})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = tmp_path / "run.html"
    run = ltrain("report", str(tmp_path), "--html", str(page))
    assert run.returncode == 0, run.stderr
    seen = look(page, tmp_path)
    assert seen["outside"] == []
    assert seen["loaded"] == 0
    assert set(seen["drawings"]) == {"loss", "norm", "speed", "mfu", "memory", "step", "experts", "load",
                                     "drops", "churn"}
    assert all(d["width"] > 500 for d in seen["drawings"].values())
    assert "rank 1 died &lt;b&gt;" in page.read_text()
