"""What SGLang lacks to serve DSpark on a CPU. Nothing in here is active on a machine with an accelerator."""
