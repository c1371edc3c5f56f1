"""The training script of Habana's guide: one linear layer, 500 steps, the default lists (F242).

With nothing but convert and disable_casts added, the layer runs in bfloat16; its parameters and gradients stay float32.
"""

import torch

from habana_mp import hmp

STEPS = 500


def main() -> None:
    torch.manual_seed(0)
    hmp.convert(opt_level="O1", bf16_file_path="", fp32_file_path="", isVerbose=False)

    x = torch.randn(64, 1024)
    y = torch.randn(64, 512)
    model = torch.nn.Linear(1024, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    print("torch.nn.Linear(1024, 512), 500 steps of SGD, default lists")
    for step in range(STEPS):
        y_pred = model(x)
        loss = torch.nn.functional.mse_loss(y_pred, y)
        optimizer.zero_grad()
        loss.backward()
        with hmp.disable_casts():
            optimizer.step()
        if step % 100 == 0 or step == STEPS - 1:
            print(f"  step {step:3}   loss {loss.item():.4f}")

    print(f"  y_pred {y_pred.dtype}   loss {loss.dtype}   weight {model.weight.dtype}   grad {model.weight.grad.dtype}")
    hmp.revert()


if __name__ == "__main__":
    main()
