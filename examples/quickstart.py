"""Ask a model that may call a tool.

The example runs without a key. With a key, name a real model:

python examples/quickstart.py
python examples/quickstart.py openai:gpt-5-mini
"""

import sys

from toolbus import Runtime, tool
from toolbus.testing import ScriptedProvider, calls, text


@tool
async def get_weather(city: str) -> dict[str, str]:
    """Return the current weather in a city."""
    return {"city": city, "sky": "clear"}


# The script replaces a model: it replies what is written here.
script = ScriptedProvider([calls(("get_weather", {"city": "Paris"})), text("The sky over Paris is clear.")])

runtime = Runtime(sys.argv[1] if len(sys.argv) > 1 else script, tools=[get_weather])
result = runtime.run_sync("What is the weather in Paris?")
print(result.text)
print(result.timeline())
