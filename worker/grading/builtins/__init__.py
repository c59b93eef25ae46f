from worker.grading.builtins.registry import load

__all__ = ["load"]
