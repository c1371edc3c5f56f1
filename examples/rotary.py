"""Which op loses the accuracy of a llama under Habana's lists? One report names it, and the edit of the policy.

The weights are random, and large enough that attention looks at positions; nothing is fetched.

    python examples/rotary.py [PAGE.html]  # the report as a page, too
"""

import sys

import torch
import transformers

from habana_mp import hmp

TOKENS = 1024


def main() -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.2,
    )
    model = transformers.LlamaForCausalLM(config)
    tokens = torch.randint(0, config.vocab_size, (1, TOKENS))
    with torch.no_grad():
        exact = model(tokens).logits

    def error(policy: hmp.Policy | str) -> float:
        with torch.no_grad(), hmp.autocast("cpu", policy=policy):
            logits = model(tokens).logits.float()
        return ((logits - exact).norm() / exact.norm()).item()

    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as report:
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
    worst = report.edits()[0]
    print(worst)
    for page in sys.argv[1:]:
        report.to_html(page)

    edited = hmp.Policy.load("hmp").with_edits(worst.text)
    with torch.no_grad(), torch.autocast("cpu"):
        autocast = ((model(tokens).logits.float() - exact).norm() / exact.norm()).item()
    print("error of the logits, relative:")
    for name, value in {"hmp": error("hmp"), f"hmp {worst.text}": error(edited), "torch.autocast": autocast}.items():
        print(f"  {name:<16} {value:.4f}")


if __name__ == "__main__":
    main()
