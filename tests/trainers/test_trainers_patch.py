"""A method patched for the time of a training: made and undone whole, whatever else happens to the object."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest

from habana_mp.trainers._run import patch


class Optimizer:
    def step(self):
        return "step"


class Refusing(Optimizer):
    """Raises from an assignment, as an interrupt does in a ``__setattr__`` in Python: before or after it is made."""

    def __init__(self, *, late):
        vars(self)["late"] = late

    def __setattr__(self, name, value):
        if self.late:
            super().__setattr__(name, value)
        if value is doubled:
            raise KeyboardInterrupt
        super().__setattr__(name, value)


def doubled():
    return "step step"


def twice(method):
    return lambda: f"{method()} {method()}"


def test_a_method_of_the_class_is_inherited_again():
    optimizer = Optimizer()
    undo = patch(optimizer, "step", twice)
    assert optimizer.step() == "step step"
    undo()
    assert vars(optimizer) == {}
    undo()
    assert optimizer.step() == "step"


def test_a_method_of_the_object_is_the_same_object_again():
    optimizer = Optimizer()
    optimizer.step = of_a_scheduler = lambda: "scheduled"
    undo = patch(optimizer, "step", twice)
    assert optimizer.step() == "scheduled scheduled"
    undo()
    assert optimizer.step is of_a_scheduler


def test_a_method_of_a_class_is_the_same_object_again():
    plain = vars(Optimizer)["step"]
    undo = patch(Optimizer, "step", lambda method: lambda self: method(self) * 2)
    assert Optimizer().step() == "stepstep"
    undo()
    assert vars(Optimizer)["step"] is plain


def test_nested_patches():
    optimizer = Optimizer()
    outer = patch(optimizer, "step", twice)
    inner = patch(optimizer, "step", twice)
    assert optimizer.step() == "step step step step"
    inner()
    assert optimizer.step() == "step step"
    outer()
    assert vars(optimizer) == {}


def test_somebody_else_has_put_it_back():
    optimizer = Optimizer()
    undo = patch(optimizer, "step", twice)
    del optimizer.step
    undo()
    assert vars(optimizer) == {}


@pytest.mark.parametrize("late", [False, True])
def test_an_interrupted_assignment_leaves_nothing(late):
    optimizer = Refusing(late=late)
    with pytest.raises(KeyboardInterrupt):
        patch(optimizer, "step", lambda _: doubled)
    assert vars(optimizer) == {"late": late}


def test_a_trainer_that_is_gone_goes_with_its_patches():
    """The patch leads to the optimizer, and from there to the trainer that holds the patch."""
    trainer, optimizer = Optimizer(), Optimizer()
    trainer.undo = patch(optimizer, "step", twice)
    optimizer.trainer = trainer
    gone = weakref.ref(optimizer)
    del trainer, optimizer
    gc.collect()
    assert gone() is None


def test_a_trainer_can_be_copied():
    trainer, optimizer = Optimizer(), Optimizer()
    trainer.undo = patch(optimizer, "step", twice)
    copy.deepcopy(trainer).undo()
    assert vars(optimizer) == {}
