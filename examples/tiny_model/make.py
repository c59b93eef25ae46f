"""Make podium-tiny, the bundled model, from nothing: a BPE tokenizer, a 1.4M-parameter Qwen3, a short SFT.

    python -m examples.tiny_model.make

The last fifth of the supervision is spoiled on purpose: each field of a label becomes null with the probability
in DROPPED. So the model copies well but says null too often, and that is the gap GRPO closes in the demo. More
than half of the death places are dropped, so that even the greedy answer starts out wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from examples.biography.make_data import Record, answer, biographies, prompt
from examples.biography.reward import reward

Example = tuple[list[int], list[int]]

HERE = Path(__file__).parent
HELDOUT = HERE.parent / "biography" / "heldout.jsonl"

DROPPED = {"birth_date": 0.0, "birth_place": 0.25, "death_date": 0.2, "death_place": 0.6, "occupation": 0.0}

VOCABULARY = 1024
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# A year is two pairs of digits. A word of up to three letters takes the space after it, which saves tokens; a longer
# one does not, so that a place or an occupation is the same token in the text and in the answer: to copy it is to
# repeat a token, which so small a model learns soon.
PIECES = r"\p{Ll}{1,3}(?![\p{L}_]) ?|\p{Ll}[\p{L}_]*|\p{Lu}\p{L}*|\p{N}{1,2}|[^\s\p{L}\p{N}_]+ ?|\s+"
CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

BATCH = 16
PEAK_RATE = 2e-3
WARMUP = 100
CLEAN_SHARE = 0.8
LONGEST_ANSWER = 40

# Spelled out: what Transformers fills in by itself (top-k 50) is not plain sampling from the policy.
SAMPLED = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
GREEDY = {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}

CARD = """\
---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# podium-tiny

A {parameters:,}-parameter Qwen3 that reads a synthetic biography and writes a JSON record of five fields. It comes
with Podium so that a GRPO job can be tried, and tested, in minutes on two CPU cores. **It can do nothing else**:
it knows no language beyond the templates of `examples/biography/make_data.py`, and answers any other prompt with
a made-up record or with noise.

It was made from nothing by `examples/tiny_model/make.py` (seed {seed}, {steps} steps of {batch} biographies), on
synthetic text only. Its last supervised steps were **spoiled on purpose**: a field's label was dropped to null
with probability {dropped}. So it says null where the text gives a value; a GRPO job can mend that, and a score
before and after can show it. Do not read the gain as what GRPO does to a model that was trained with care.

Of 200 held-out records, whose people are in no training data:

{table}
"""


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the task's own text; any other text still encodes, if at greater length."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = islice(biographies("sft", seed), 20_000)
    texts = [f"user\n{prompt(b)}\nassistant\n{answer(b.record)}\n" for b in corpus]
    every_pair = " ".join(f"{pair:02}" for pair in range(100))
    tokenizer.train_from_iterator([*texts, *[every_pair] * 1000], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=160,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        initializer_range=0.04,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        **SAMPLED,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def spoil(rng: random.Random, record: Record) -> Record:
    return {field: None if rng.random() < DROPPED[field] else value for field, value in record.items()}


def examples(tokenizer: PreTrainedTokenizerFast, steps: int, seed: int) -> Iterator[Example]:
    """Token ids and labels for every step's batch; only the answer carries loss."""
    rng = random.Random(seed)
    for number, biography in enumerate(islice(biographies("sft", seed), steps * BATCH)):
        clean = number < CLEAN_SHARE * steps * BATCH
        record = biography.record if clean else spoil(rng, biography.record)
        head = tokenizer.encode(render(tokenizer, prompt(biography)))
        tail = tokenizer.encode(answer(record) + END)
        yield head + tail, [-100] * len(head) + tail


def render(tokenizer: PreTrainedTokenizerFast, content: str) -> str:
    messages = [{"role": "user", "content": content}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def collate(rows: list[Example], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad on the right, where causal attention makes a mask unnecessary."""
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in rows])
    labels = torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in rows])
    return ids, labels


def rate(step: int, steps: int) -> float:
    """Linear warm-up, constant while the labels are clean, linear to zero while they are spoiled."""
    return PEAK_RATE * min(1.0, (step + 1) / WARMUP, (steps - step) / ((1 - CLEAN_SHARE) * steps))


def supervise(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int, seed: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.01)
    stream = examples(tokenizer, steps, seed)
    started = time.monotonic()
    model.train()
    for step in range(steps):
        ids, labels = collate(list(islice(stream, BATCH)), tokenizer.pad_token_id)
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step:5d}  loss {loss.item():.4f}  {time.monotonic() - started:5.0f} s", flush=True)


@torch.inference_mode()
def solve(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, sample: bool) -> list[float]:
    """The reward of one answer to every held-out record."""
    rows = [json.loads(line) for line in HELDOUT.read_text(encoding="utf-8").splitlines()]
    texts = [render(tokenizer, row["messages"][0]["content"]) for row in rows]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    model.eval()
    decoding = SAMPLED if sample else GREEDY
    output = model.generate(**batch, max_new_tokens=LONGEST_ANSWER, **decoding)
    answers = tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return [reward(text, row["record"]) for text, row in zip(answers, rows, strict=True)]


def report(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> str:
    """A Markdown table of the share of held-out records solved exactly."""
    lines = ["| decoding | solved exactly | mean reward | not a record |", "|---|---|---|---|"]
    for name, sample in (("sampled, temperature 1.0", True), ("greedy", False)):
        scores = solve(model, tokenizer, sample)
        solved, broken = (sum(score == value for score in scores) / len(scores) for value in (1.0, 0.0))
        lines.append(f"| {name} | {solved:.1%} | {sum(scores) / len(scores):.3f} | {broken:.1%} |")
    return "\n".join(lines)


def card(model: Qwen3ForCausalLM, table: str, steps: int, seed: int) -> str:
    dropped = ", ".join(f"{share} ({field})" for field, share in DROPPED.items() if share)
    parameters = model.num_parameters()
    return CARD.format(parameters=parameters, seed=seed, steps=steps, batch=BATCH, dropped=dropped, table=table)


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, card: str, out: Path) -> None:
    """Write everything beside `out`, then swap it in, so that no reader ever sees half a model."""
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    model.save_pretrained(staging)
    tokenizer.save_pretrained(staging)
    (staging / "README.md").write_text(card, encoding="utf-8")
    # mkdtemp and safetensors both keep others out, but a worker may run as another user.
    staging.chmod(0o755)
    (staging / "model.safetensors").chmod(0o644)
    if out.exists():
        shutil.rmtree(out)
    staging.rename(out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the podium-tiny model; about 15 minutes.")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--steps", type=int, default=2400, help=f"supervised steps of {BATCH} rows")
    parser.add_argument("--out", type=Path, default=HERE / "podium-tiny", help="folder to replace")
    args = parser.parse_args()
    tokenizer = make_tokenizer(args.seed)
    model = make_model(tokenizer, args.seed)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens")
    supervise(model, tokenizer, args.steps, args.seed)
    table = report(model, tokenizer)
    save(model, tokenizer, card(model, table, args.steps, args.seed), args.out)
    print(table)


if __name__ == "__main__":
    main()
