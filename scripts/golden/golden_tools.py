"""What the scripts that write tests/golden/ share."""
import contextlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"


@contextlib.contextmanager
def environment_of(packages):
    """The Python of a virtual environment with packages of PyPI, for as long as the block runs."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = os.path.join(folder, "bin", "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        yield python


def run_with(packages, script):
    """Ends the process as SCRIPT --here ARGUMENTS does with these packages; returns where --here was given."""
    if "--here" in sys.argv:
        return
    with environment_of(packages) as python:
        sys.exit(subprocess.run([python, os.path.abspath(script), "--here", *sys.argv[1:]]).returncode)


def described_by(packages, script):
    """The JSON that the last line of SCRIPT --describe is."""
    with environment_of(packages) as python:
        said = subprocess.run([python, os.path.abspath(script), "--describe"], check=True, capture_output=True, text=True)
    return json.loads(said.stdout.splitlines()[-1])


def philox(seed, stream, index):
    """Philox4x32-10 (Salmon et al., SC11) of a 64-bit key and a 128-bit counter."""
    word = 0xFFFFFFFF
    c = [index & word, index >> 32, stream & word, stream >> 32]
    k = [seed & word, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & word, (a >> 32) ^ c[3] ^ k[1], a & word]
        k = [(k[0] + 0x9E3779B9) & word, (k[1] + 0xBB67AE85) & word]
    return c


def hash_name(name):
    """64-bit FNV-1a: the stream of random numbers of a name."""
    stream = 14695981039346656037
    for c in name.encode():
        stream = (stream ^ c) * 1099511628211 % 2**64
    return stream


def write_safetensors(path, tensors, metadata):
    """Tensors of torch, the widest types first; metadata: texts."""
    import torch

    names = {torch.bfloat16: "BF16", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.uint8: "U8"}
    header, offset, data = {"__metadata__": metadata}, 0, []
    for name in sorted(tensors, key=lambda n: (-tensors[n].element_size(), n)):
        t = tensors[name].detach().contiguous()
        raw = (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy().tobytes()
        header[name] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
        data.append(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + b"".join(data))


class Float64Torch:
    """The torch module, whose 32-bit types are 64-bit ones."""

    def __init__(self, torch):
        self.__dict__.update(_torch=torch, float32=torch.float64, float=torch.float64)

    def __getattr__(self, name):
        return getattr(self._torch, name)


@contextlib.contextmanager
def transformers_in_float64():
    """Within the block transformers' modules compute in fp64 where they ask for fp32. Gives what .float() was."""
    import torch

    real_float = torch.Tensor.float
    changed = [m for m in list(sys.modules.values())
               if getattr(m, "__name__", "").startswith("transformers.") and getattr(m, "torch", None) is torch]
    for module in changed:
        module.torch = Float64Torch(torch)
    torch.Tensor.float = torch.Tensor.double
    try:
        yield real_float
    finally:
        torch.Tensor.float = real_float
        for module in changed:
            module.torch = torch


def exact_rotary(rotary, real_float):
    """inv_freq again in fp64, by transformers' own function for the type, and tables rounded to fp32."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    def again(kind, prefix, **of):
        init = rotary.compute_default_rope_parameters if kind == "default" else ROPE_INIT_FUNCTIONS[kind]
        inv_freq, scaling = init(rotary.config, device="cpu", **of)
        assert inv_freq.dtype == torch.float64, inv_freq.dtype
        was = getattr(rotary, prefix + "inv_freq")
        assert torch.allclose(was.double(), inv_freq, rtol=1e-5), "not the rotary embedding that is expected"
        setattr(rotary, prefix + "inv_freq", inv_freq)
        setattr(rotary, prefix + "original_inv_freq", inv_freq.clone())
        setattr(rotary, prefix + "attention_scaling", scaling)

    if isinstance(rotary.rope_type, dict):
        for layer_type, kind in rotary.rope_type.items():
            again(kind, layer_type + "_", layer_type=layer_type)
    else:
        again(rotary.rope_type, "")
    tables = rotary.forward

    def rounded(t):
        if t.is_complex():
            return torch.view_as_complex(rounded(torch.view_as_real(t)))
        return real_float(t).to(torch.float64)

    def forward(*a, **k):
        made = tables(*a, **k)
        return tuple(rounded(t) for t in made) if isinstance(made, tuple) else rounded(made)

    rotary.forward = forward
