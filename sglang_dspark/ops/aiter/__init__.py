"""AITER, AMD's library of kernels, as the backends of our ops see it: what is there, and how far off it is.

AITER's signatures change from release to release, and importing it needs a GPU (or rocminfo). So nothing here imports
it before an AMD platform asks, no version is ever read, and a function is used only when it has every parameter that
we pass (`signatures.py`). What a signature cannot say, whether the function still does what we take it for, a trial
call says while a backend is bound (`trial.py`).

Read in github.com/ROCm/aiter: tags v0.1.16 to v0.1.20.post1, and commit e4048607a5 (2026-08-22). Untested on a device.
"""
