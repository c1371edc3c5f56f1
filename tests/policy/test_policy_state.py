"""Policies in checkpoints: ``PolicyState``."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp

from habana_mp import hmp

BASE = hmp.Policy.from_ops(lower=["mm", "linear"], fp32=["softmax"], promote=["add"])


@pytest.mark.parametrize("policy", ["hmp", BASE, str(BASE)], ids=["name", "policy", "text"])
def test_the_same_policy(tmp_path, policy):
    state = hmp.PolicyState(policy)
    torch.save({"policy": state.state_dict()}, tmp_path / "checkpoint.pt")
    state.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True)["policy"])


def test_the_name_does_not_count():
    state = hmp.PolicyState(BASE).state_dict()
    other = hmp.Policy.load(str(BASE).replace("name=custom", "name=mine"))
    hmp.PolicyState(other).load_state_dict(state)
    # Nor does the hash, where another version of habana_mp has made it.
    hmp.PolicyState(other).load_state_dict({**state, "hash": "0"})


def test_every_process_has_the_same_hash():
    code = "from habana_mp import hmp; print(hmp.PolicyState('hmp').state_dict()['hash'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hmp.PolicyState("hmp").state_dict()["hash"]


@pytest.mark.parametrize(
    ("other", "lines"),
    [
        (BASE.with_edits("+softmax:lower"), ["softmax: fp32 -> lower"]),
        (BASE.with_edits("-mm", "+mul:fp32"), ["mm: lower -> rest", "mul: rest -> fp32"]),
        (BASE.with_edits("+mul@float16:lower"), ["mul@float16: rest -> lower"]),
        (BASE.with_low_dtype(torch.float16), ["low_dtype: bfloat16 -> float16"]),
        (
            hmp.Policy.from_ops(lower=["mm", "linear"], promote=["add"], rest="fp32"),
            ["rest: inputs -> fp32", "softmax: fp32 -> rest"],
        ),
    ],
    ids=["moved", "out and in", "for one dtype", "low dtype", "rest"],
)
def test_another_policy(other, lines):
    saved = hmp.PolicyState(BASE).state_dict()
    message = (
        f"the checkpoint was made under the policy 'custom', which differs from {other.name!r}:\n  "
        + "\n  ".join(lines)
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$") as warned:
        hmp.PolicyState(other).load_state_dict(saved)
    assert warned[0].filename == __file__


def test_an_overload_alone():
    """D17: under autocast it stands for itself, in a list of convert for the whole op."""
    one, all_of_them = hmp.Policy.from_ops(lower=["pow.Tensor_Scalar"]), hmp.Policy.from_ops(lower=["pow"])
    with pytest.warns(UserWarning, match=r"\n  pow.Scalar \(autocast\): rest -> lower\n"):
        hmp.PolicyState(all_of_them).load_state_dict(hmp.PolicyState(one).state_dict())


def test_many_differences():
    with pytest.warns(UserWarning, match=r"which differs from 'torch-cuda':\n(  .*\n){20}  and \d+ more$"):
        hmp.PolicyState("torch-cuda").load_state_dict(hmp.PolicyState("hmp").state_dict())


def test_a_policy_that_cannot_be_read():
    saved = {"policy": "name=new low_dtype=float8", "hash": "0"}
    with pytest.warns(
        UserWarning, match="cannot read the policy of the checkpoint, so it is not compared with 'hmp': "
    ):
        hmp.PolicyState("hmp").load_state_dict(saved)


@pytest.mark.parametrize(
    "state", [{}, None, {"policy": str(BASE)}, {"policy": 1, "hash": 2}, [("policy", "hash")]], ids=str
)
def test_what_is_no_state(state):
    with pytest.raises(
        ValueError, match="a policy in a checkpoint must be a dict with the strings policy and hash, not"
    ):
        hmp.PolicyState("hmp").load_state_dict(state)


@pytest.mark.parametrize(
    ("policy", "error", "message"),
    [
        ("hpm", ValueError, "Unknown policy 'hpm'"),
        (None, TypeError, "Policy.load takes a name, a path or a text, not None"),
        (b"hmp", TypeError, "Policy.load takes a name, a path or a text, not b'hmp'"),
    ],
    ids=["unknown", "None", "bytes"],
)
def test_no_policy(policy, error, message):
    with pytest.raises(error, match=message):
        hmp.PolicyState(policy)


@pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled, unavailable or uninitialized:UserWarning"
)  # of dcp itself
def test_distributed_checkpoints(tmp_path):
    model = torch.nn.Linear(2, 2)
    dcp.save({"model": model.state_dict(), "policy": hmp.PolicyState(BASE)}, checkpoint_id=tmp_path)
    dcp.load({"model": model.state_dict(), "policy": hmp.PolicyState(BASE)}, checkpoint_id=tmp_path)
    with pytest.warns(UserWarning, match="softmax: fp32 -> lower"):
        dcp.load({"policy": hmp.PolicyState(BASE.with_edits("+softmax:lower"))}, checkpoint_id=tmp_path)
