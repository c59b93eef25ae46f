"""The model card (README.md) of a result: what it is, how to load it, how it was trained."""

import json
from collections.abc import Iterator

from core.spec import AdapterMethod, JobSpec, ModelSource

_ADAPTER_USE = """\
```python
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

model = AutoPeftModelForCausalLM.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
```
"""
_LOCAL_BASE = """\
The base is not on the Hub: the operator of the service registered it as `{name}`. The lines above find it when that
is a folder (or a link to one) in the working directory. Otherwise load it yourself and add the adapter:

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("path/to/the/base"), "path/to/this/folder")
```
"""
_MODEL_USE = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
```
"""


_METHODS = {
    AdapterMethod.LORA: "LoRA, r {0.r}, alpha {0.alpha}",
    AdapterMethod.QLORA: "QLoRA (the base in 4 bits, NF4), r {0.r}, alpha {0.alpha}",
    AdapterMethod.FULL: "all weights",
}


def model_card(spec: JobSpec, final_step: int) -> str:
    table = "\n".join(f"| {name} | {value} |" for name, value in _facts(spec, final_step))
    return f"""\
---
base_model: {json.dumps(spec.model.name)}
base_model_relation: {"finetune" if _is_whole(spec) else "adapter"}
library_name: {"transformers" if _is_whole(spec) else "peft"}
pipeline_tag: text-generation
tags: [grpo, trl, {"full" if _is_whole(spec) else "lora"}, podium]
---

# {spec.suffix or spec.model.name.rpartition("/")[2]}

{"A model" if _is_whole(spec) else "An adapter"} trained from `{spec.model.name}` with GRPO (TRL) by Podium. Whether it
is better than its base, and how sure that is, stands in `results.json` of the same job.

## Use

{_use(spec)}
## Training

| | |
|---|---|
{table}
"""


def _use(spec: JobSpec) -> str:
    if _is_whole(spec):
        return _MODEL_USE
    if spec.model.source is ModelSource.LOCAL:
        return f"{_ADAPTER_USE}\n{_LOCAL_BASE.format(name=spec.model.name)}"
    return _ADAPTER_USE


def _facts(spec: JobSpec, final_step: int) -> Iterator[tuple[str, object]]:
    wanted, adapter = spec.hyperparameters, spec.adapter
    yield "base model", f"{spec.model.name}, revision {spec.model.revision or 'unknown'}"
    yield (
        "method",
        adapter.method.value if _is_whole(spec) else f"{adapter.method}, r {adapter.r}, alpha {adapter.alpha}",
    )
    yield "steps", final_step
    yield "rollouts per step", f"{wanted.prompts_per_step} prompts x {wanted.num_generations} completions"
    yield "learning rate", f"{spec.learning_rate:g} ({wanted.lr_scheduler_type})"
    yield "loss", f"{wanted.loss_type}, beta {wanted.beta:g}, epsilon {wanted.epsilon:g}"
    yield "sampling", f"temperature {wanted.temperature:g}, top_p {wanted.top_p:g}"
    yield "longest completion", f"{wanted.max_completion_length} tokens"
    yield "rewards", ", ".join(f"{term.name} (weight {term.weight:g})" for term in spec.rewards)
    yield "training data", f"{spec.training.rows} rows, SHA-256 {spec.training.sha256}"
    yield "seed", spec.seed


def _is_whole(spec: JobSpec) -> bool:
    return spec.adapter.method is AdapterMethod.FULL
