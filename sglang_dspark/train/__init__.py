"""Training on one machine: the demo's target, and DSpark drafts for any target whose features can be had."""
