"""disable_casts: where casts are off, for whom, and that any way out brings back what was before (F96 to F104, D27)."""

import asyncio
import contextlib
import signal
import threading

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp

A = torch.eye(2)


def dtype() -> torch.dtype:
    """bfloat16 where casts are on, float32 where they are off: mm is in the lower list."""
    return torch.mm(A, A).dtype


ON, OFF = torch.bfloat16, torch.float32


@pytest.fixture
def converted():
    hmp.convert()


def in_new_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.usefixtures("converted")
class TestScope:
    def test_block_f96_f101(self):
        seen = [dtype()]
        with hmp.disable_casts():
            seen += [dtype(), (A @ A).dtype, A.mm(A).dtype, torch.nn.functional.linear(A, A).dtype]
        assert [*seen, dtype()] == [ON, OFF, OFF, OFF, OFF, ON]

    def test_nothing_is_cast_on_entry_f99(self):
        x = torch.mm(A, A)
        with hmp.disable_casts():
            assert x.dtype == ON
            assert torch.mm(x, x).dtype == ON
            assert torch.mm(x.float(), A).dtype == OFF

    def test_every_rule_is_off(self):
        low = A.bfloat16()
        with hmp.disable_casts():
            assert torch.softmax(low, 0).dtype == torch.bfloat16  # fp32 list
            assert torch.cat([A, low]).dtype == torch.float32  # promote: torch's own promotion
            with pytest.raises(RuntimeError, match="to have the same dtype"):
                torch.mm(A, low)  # nothing makes the inputs meet

    def test_nested(self):
        with hmp.disable_casts():
            with hmp.disable_casts():
                assert dtype() == OFF
            assert dtype() == OFF
        assert dtype() == ON

    def test_one_instance_in_itself(self):
        off = hmp.disable_casts()
        with off:
            with off:
                assert dtype() == OFF
            assert dtype() == OFF
        assert dtype() == ON

    def test_one_instance_again_and_again_f102(self):
        off = hmp.disable_casts()
        for _ in range(500):
            with off:
                assert dtype() == OFF
            assert dtype() == ON

    def test_exit_stack_and_calls_by_name(self):
        with contextlib.ExitStack() as stack:
            off = stack.enter_context(hmp.disable_casts())
            assert (off, dtype()) == (None, OFF)
        assert dtype() == ON
        by_name = hmp.disable_casts()
        for _ in range(20):  # past the point where the interpreter specialises calls
            by_name.__enter__()
            assert dtype() == OFF
            by_name.__exit__(None, None, None)
            assert dtype() == ON

    def test_inside_an_atomic_op_f103_d19(self):
        seen = []

        class Activation(torch.nn.Module):
            def forward(self, x):
                seen.append(dtype())
                with hmp.disable_casts():
                    seen.append(dtype())
                seen.append(dtype())
                return x

        torch.nn.TransformerEncoderLayer(4, 1, 4, activation=Activation())(torch.zeros(1, 2, 4))
        assert seen == [ON, OFF, ON]

    def test_left_too_often(self):
        with pytest.raises(RuntimeError, match="left more often than it was entered"):
            hmp.disable_casts().__exit__(None, None, None)
        assert dtype() == ON


@pytest.mark.usefixtures("converted")
class TestExit:
    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit, SystemExit])
    def test_exception(self, error):
        with pytest.raises(error), hmp.disable_casts():
            raise error
        assert dtype() == ON

    def test_inner_exception_leaves_the_outer_off(self):
        with hmp.disable_casts():
            with pytest.raises(ValueError, match="inner"), hmp.disable_casts():
                raise ValueError("inner")
            assert dtype() == OFF
        assert dtype() == ON

    def test_exception_of_an_op(self):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), hmp.disable_casts():
            torch.mm(A, torch.zeros(3, 3))
        assert dtype() == ON

    def test_exception_inside_an_atomic_op_d19(self):
        with pytest.raises(RuntimeError, match="normalized_shape"):
            torch.nn.functional.layer_norm(A, [3])
        assert dtype() == ON

    def test_return_break_and_continue(self):
        def leaves():
            with hmp.disable_casts():
                return dtype()

        assert (leaves(), dtype()) == (OFF, ON)
        for way in range(2):
            with hmp.disable_casts():
                if way:
                    break
                continue
        assert dtype() == ON

    def test_real_signal(self):
        """Ctrl-C at any bytecode of a loop that enters and leaves: casts are on after it."""
        previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
        left = []
        try:
            for microseconds in range(400, 700):
                with pytest.raises(KeyboardInterrupt):  # noqa: PT012
                    signal.setitimer(signal.ITIMER_REAL, microseconds / 1e6)
                    while True:
                        with hmp.disable_casts():
                            pass
                left.append(dtype())
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        assert left == [ON] * 300


@pytest.mark.usefixtures("converted")
class TestDecorator:
    @pytest.mark.parametrize("decorator", [hmp.disable_casts, hmp.disable_casts()], ids=["class", "instance"])
    def test_function(self, decorator):
        @decorator
        def step(x, *, scale=1):
            """Doc of step."""
            return x * scale, dtype()

        assert (step.__name__, step.__doc__) == ("step", "Doc of step.")
        assert step(2, scale=3) == (6, OFF)
        assert dtype() == ON

    def test_method(self):
        class Trainer:
            @hmp.disable_casts()
            def step(self):
                return self, dtype()

        trainer = Trainer()
        assert trainer.step() == (trainer, OFF)

    def test_recursive_function(self):
        @hmp.disable_casts()
        def down(n):
            return [dtype(), *down(n - 1), dtype()] if n else [dtype()]

        assert down(3) == [OFF] * 7
        assert dtype() == ON

    def test_function_that_raises(self):
        @hmp.disable_casts()
        def fails():
            raise ValueError(str(dtype()))

        with pytest.raises(ValueError, match="float32"):
            fails()
        assert dtype() == ON

    def test_generator_holds_while_its_body_runs(self):
        @hmp.disable_casts()
        def batches():
            got = dtype()
            for _ in range(2):
                got = yield got, dtype()
            return "end"

        generator = batches()
        assert (next(generator), dtype()) == ((OFF, OFF), ON)
        assert (generator.send("sent"), dtype()) == (("sent", OFF), ON)
        with pytest.raises(StopIteration) as end:
            next(generator)
        assert (end.value.value, dtype()) == ("end", ON)

    # Of torch's own decorator, on Python 3.12 and later.
    @pytest.mark.filterwarnings("ignore:the .type, exc, tb. signature of throw:DeprecationWarning")
    def test_generator_that_is_thrown_at_or_closed(self):
        seen = []

        @hmp.disable_casts()
        def batches():
            try:
                yield
            except ValueError:
                seen.append(dtype())
                yield
            finally:
                seen.append(dtype())

        generator = batches()
        next(generator)
        generator.throw(ValueError)
        assert dtype() == ON
        generator.close()
        assert (seen, dtype()) == ([OFF, OFF], ON)

    def test_generator_abandoned_and_two_interleaved(self):
        @hmp.disable_casts()
        def batches():
            while True:
                yield dtype()

        one, two = batches(), batches()
        assert [next(one), dtype(), next(two), dtype(), next(one), dtype()] == [OFF, ON] * 3
        with hmp.disable_casts():
            assert next(two) == OFF
        del one, two
        assert dtype() == ON

    def test_generator_driven_from_two_threads(self):
        @hmp.disable_casts()
        def batches():
            while True:
                yield dtype()

        generator = batches()
        assert [next(generator), dtype()] == [OFF, ON]
        assert in_new_thread(lambda: [next(generator), dtype()]) == [OFF, ON]
        assert dtype() == ON

    def test_coroutine_holds_while_its_body_runs(self):
        @hmp.disable_casts()
        async def step():
            before = dtype()
            await asyncio.sleep(0)
            return before, dtype()

        async def other():
            seen = [dtype()]
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append(dtype())
            return seen

        async def both():
            return await asyncio.gather(step(), other(), step())

        assert asyncio.run(both()) == [(OFF, OFF), [ON] * 4, (OFF, OFF)]
        assert dtype() == ON

    def test_an_async_generator_is_refused(self):
        async def batches():
            yield

        with pytest.raises(TypeError, match="async generator: use it as a context manager inside"):
            hmp.disable_casts()(batches)


@pytest.mark.usefixtures("converted")
class TestThreads:
    def test_a_new_thread_has_casts_on(self):
        with hmp.disable_casts():
            assert in_new_thread(dtype) == ON
            assert dtype() == OFF

    def test_off_in_another_thread_only(self):
        entered, leave = threading.Event(), threading.Event()
        inside = []

        def body():
            with hmp.disable_casts():
                inside.append(dtype())
                entered.set()
                leave.wait(10)
                inside.append(dtype())

        thread = threading.Thread(target=body)
        thread.start()
        assert entered.wait(10)
        assert dtype() == ON
        leave.set()
        thread.join()
        assert (inside, dtype()) == ([OFF, OFF], ON)

    def test_one_instance_in_two_threads_left_crosswise(self):
        off = hmp.disable_casts()
        steps = threading.Barrier(2, timeout=10)
        seen = {}

        def body(name, first):
            seen[name] = []
            if first:
                with off:
                    steps.wait()  # 1: the other enters
                    steps.wait()
                seen[name].append(dtype())
                steps.wait()  # 2: this one is out, the other is in
            else:
                steps.wait()
                with off:
                    steps.wait()
                    steps.wait()
                    seen[name].append(dtype())
                seen[name].append(dtype())

        threads = [threading.Thread(target=body, args=(name, name == "first")) for name in ("first", "second")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == {"first": [ON], "second": [OFF, ON]}

    def test_backward_started_inside(self):
        """The backward pass runs as the thread that started it (D27); casts inside a hook follow."""
        seen = []
        weight = torch.eye(2, requires_grad=True)
        y = torch.mm(weight, A)
        y.register_hook(lambda grad: seen.append(dtype()))
        y.sum().backward(retain_graph=True)
        with hmp.disable_casts():
            y.sum().backward()
        assert seen == [ON, OFF]
        assert dtype() == ON
        assert weight.grad.dtype == torch.float32
        assert weight.grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]

    def test_backward_outside_of_a_forward_inside(self):
        weight = torch.eye(2, requires_grad=True)
        with hmp.disable_casts():
            y = torch.mm(weight, A)
        y.sum().backward()
        assert (y.dtype, weight.grad.dtype) == (OFF, torch.float32)


class TestWithoutConversion:
    def test_before_convert(self):
        with hmp.disable_casts():
            assert dtype() == OFF
        assert dtype() == OFF

    def test_convert_and_revert_inside(self):
        with hmp.disable_casts():
            hmp.convert()
            assert dtype() == OFF
        assert dtype() == ON
        with hmp.disable_casts():
            hmp.revert()
        assert dtype() == OFF

    def test_after_revert(self):
        hmp.convert()
        hmp.revert()
        with hmp.disable_casts():
            assert dtype() == OFF
        hmp.convert()
        assert dtype() == ON


class SilentError(RuntimeError):
    def __str__(self):
        raise ValueError("no text")


class TestErrorsWithoutText:
    """The text of an error is asked for, to add a note. An error that has none leaves the block as any other."""

    ERRORS = (RuntimeError("no file \udcff"), SilentError())

    @pytest.mark.parametrize("error", ERRORS, ids=["surrogate", "raising"])
    def test_disable_casts(self, error):
        hmp.convert()
        with pytest.raises(RuntimeError) as caught, hmp.disable_casts():
            raise error
        assert caught.value is error
        assert dtype() == ON

    @pytest.mark.parametrize("error", ERRORS, ids=["surrogate", "raising"])
    def test_a_region(self, error):
        with pytest.raises(RuntimeError) as caught, hmp.autocast("cpu"):
            raise error
        assert caught.value is error
        assert dtype() == OFF

    @pytest.mark.parametrize("error", ERRORS, ids=["surrogate", "raising"])
    @pytest.mark.parametrize("given", [A, A.bfloat16()], ids=["cast", "as-it-is"])
    def test_a_patched_op(self, error, given):
        def raising(a, b):
            raise error

        hmp.convert(policy=hmp.Policy.from_ops(lower=["triplet_margin_with_distance_loss"]))
        op = F.triplet_margin_with_distance_loss
        for call in (op, op.__call__):  # the slot in C++, and its twin in Python
            with pytest.raises(RuntimeError) as caught:
                call(given, given, given, distance_function=raising)
            assert caught.value is error
