#!/usr/bin/env python3
"""Writes tests/golden/hf_configs.json: what transformers' own config classes say of each key of a config.json.

For each architecture of ltrain and two versions of transformers: every key that the class writes, with its default,
and what the class makes of null under that key ("refused" where it takes none). tests/runtime/recipe/hf_config_test.cpp
compares ltrain's tables (models/families/) with it. Makes a virtual environment for each version and
installs transformers from PyPI there; torch is not needed.
"""
import json
import sys

from golden_tools import GOLDEN, described_by

VERSIONS = ["4.57.6", "5.23.0"]
ARCHITECTURES = ["gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "olmo2", "olmoe", "smollm3",
                 "phi3", "gemma2", "gemma3_text",
                 "gpt_oss", "deepseek_v2", "deepseek_v3"]


def describe():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    out = {}
    for name in ARCHITECTURES:
        make = CONFIG_MAPPING[name]
        defaults = make().to_dict()
        of_null = {}
        for key in defaults:
            if key in ("model_type", "transformers_version"):
                continue
            try:
                of_null[key] = make(**{key: None}).to_dict().get(key)
            except Exception:
                of_null[key] = "refused"
        out[name] = {
            "defaults": {k: v for k, v in defaults.items() if k != "transformers_version"},
            "null": of_null,
            "other_spellings": dict(make.attribute_map),
        }
    print(json.dumps(out))


def main():
    versions = {v: described_by([f"transformers=={v}"], __file__) for v in VERSIONS}
    path = GOLDEN / "hf_configs.json"
    with open(path, "w") as out:
        json.dump(versions, out, indent=1, sort_keys=True)
        out.write("\n")
    print(f"{path}: {path.stat().st_size} bytes")


if "--describe" in sys.argv:
    describe()
else:
    main()
