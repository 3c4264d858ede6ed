"""import poet: what stops it, and what it leaves alone."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_taken_dispatch_key_stops_it_with_the_key_named() -> None:
    ran = _python(
        """
        import torch
        library = torch.library.Library("_", "IMPL")
        library.fallback(lambda *args, **kwargs: None, dispatch_key="Fake")
        import poet
        """
    )
    assert ran.returncode != 0
    assert "ImportError" in ran.stderr
    assert "Fake" in ran.stderr
    assert "already" in ran.stderr


def test_a_torch_out_of_range_stops_it_with_both_versions_named() -> None:
    ran = _python(
        """
        import torch
        torch.__version__ = torch.torch_version.TorchVersion("2.99.1")
        import poet
        """
    )
    assert ran.returncode != 0
    assert "ImportError" in ran.stderr
    assert "2.99.1" in ran.stderr
    assert "2.13" in ran.stderr


def test_it_has_no_effect_on_training_that_is_not_wrapped() -> None:
    ran = _python(
        """
        import torch
        from sys import modules
        optimizer = modules["torch.optim.optimizer"]
        numpy, hooks = torch.Tensor.numpy, dict(optimizer._global_optimizer_pre_hooks)
        import poet
        assert torch.Tensor.numpy is numpy
        assert dict(optimizer._global_optimizer_pre_hooks) == hooks
        assert not poet._C.is_listening()
        poet.trace(lambda: torch.ones(3).exp())
        assert torch.Tensor.numpy is numpy
        # One stays, since another thread may be walking PyTorch's list of them, and does nothing.
        from poet._live import _enter_optimizer
        left = dict(optimizer._global_optimizer_pre_hooks)
        assert [hook for key, hook in left.items() if key not in hooks] == [_enter_optimizer]
        assert _enter_optimizer() is None
        assert not poet._C.is_listening()
        """
    )
    assert ran.returncode == 0, ran.stderr
