"""Make a Qwen3_5MoeForConditionalGeneration of 3 M parameters that really answers.

It learns three conversations by heart, in about 40 s on two cores: an answer with reasoning, a short one, and a call of
the tool get_weather. vLLM's parsers qwen3 (reasoning) and qwen3_coder (tools) read them as those of the large model.
The mutations are for the tests of a deployment's acceptance: it must notice them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration

WEATHER_CALL = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
SUM_QUESTION = "What is 2+2?"
# question, reasoning, answer
CONVERSATIONS = [
    (SUM_QUESTION, "2 plus 2 makes 4.", "2 + 2 = 4."),
    ("Name the capital of France.", "France's capital is Paris.", "Paris."),
    ("What is the weather in Paris?", "I need the weather tool.", WEATHER_CALL),
]

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VISION_TOKENS = ["<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
# Tokens of their own, but not special: the parsers look for them in the text.
MARKUP_TOKENS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
BPE_VOCABULARY = 500
VOCABULARY = 512  # with room for the tokens above; divisible by the ranks

# The model learns that a tool call needs a tool on offer, not what the tool is: it has three conversations to learn from.
CHAT_TEMPLATE = """{%- if tools %}<|im_start|>system
tools<|im_end|>
{% endif %}{%- for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] }}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""

MOST_STEPS = 400
GOOD_LOSS = 0.002
IGNORED = -100  # the label that the loss of transformers leaves out


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    special = SPECIAL_TOKENS + VISION_TOKENS
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=BPE_VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    bpe.train_from_iterator(texts * 20, trainer)
    bpe.add_tokens(MARKUP_TOKENS)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=special[1:],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3_5MoeForConditionalGeneration:
    token = tokenizer.convert_tokens_to_ids
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        # vLLM's CPU kernel refuses 32 at the first request
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "max_position_embeddings": 4096,
        "eos_token_id": token("<|im_end|>"),
    }
    vision = {
        "depth": 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "out_hidden_size": 128,
        "patch_size": 16,
        "num_position_embeddings": 64,
    }
    config = Qwen3_5MoeConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
    torch.manual_seed(0)
    return Qwen3_5MoeForConditionalGeneration(config)


def training_pairs(
    tokenizer: PreTrainedTokenizerFast, conversations: list[tuple[str, str, str]]
) -> list[tuple[list[int], list[int]]]:
    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    pairs = []
    for question, reasoning, answer in conversations:
        # An answer is the same whether tools are on offer or not; a call needs them.
        for tools in [[{"any": 1}]] if answer is WEATHER_CALL else [None, [{"any": 1}]]:
            prompt = tokenizer.apply_chat_template(
                [{"role": "user", "content": question}], tools=tools, add_generation_prompt=True, tokenize=False
            )
            thought = f"{reasoning}\n</think>\n\n" if reasoning else "</think>\n\n"
            pairs.append((encode(prompt), encode(f"{thought}{answer}<|im_end|>")))
    return pairs


def train(model: Qwen3_5MoeForConditionalGeneration, pairs: list[tuple[list[int], list[int]]], padding: int) -> None:
    shape = (len(pairs), max(len(prompt) + len(answer) for prompt, answer in pairs))
    tokens, labels = torch.full(shape, padding), torch.full(shape, IGNORED)
    mask = torch.zeros(shape, dtype=torch.long)
    for row, (prompt, answer) in enumerate(pairs):
        end = len(prompt) + len(answer)
        tokens[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
        mask[row, :end] = 1
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    for step in range(MOST_STEPS):
        loss = model(input_ids=tokens, attention_mask=mask, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 40 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
        if loss.item() < GOOD_LOSS:
            break


def verify(
    model: Qwen3_5MoeForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    pairs: list[tuple[list[int], list[int]]],
) -> None:
    for prompt, answer in pairs:
        said = model.generate(torch.tensor([prompt]), max_new_tokens=len(answer) + 8, do_sample=False)
        if said[0][len(prompt) :].tolist() != answer:
            raise SystemExit(f"not learned: {tokenizer.decode(prompt)!r} -> {tokenizer.decode(said[0])!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wrong-answer", action="store_true", help='answers "2 + 2 = 5."')
    parser.add_argument("--no-reasoning", action="store_true", help="leaves its thoughts empty")
    options = parser.parse_args()
    conversations = list(CONVERSATIONS)
    if options.wrong_answer:
        conversations[0] = (SUM_QUESTION, "2 plus 2 makes 5.", "2 + 2 = 5.")
    if options.no_reasoning:
        conversations = [(question, "", answer) for question, _, answer in conversations]
    # From the unchanged texts: all variants have the same tokenizer but for the one digit.
    tokenizer = make_tokenizer([" ".join(conversation) for conversation in CONVERSATIONS])
    model = make_model(tokenizer)
    pairs = training_pairs(tokenizer, conversations)
    train(model, pairs, tokenizer.convert_tokens_to_ids("<|endoftext|>"))
    model = model.to(torch.bfloat16).eval()
    verify(model, tokenizer, pairs)
    model.save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)


if __name__ == "__main__":
    main()
