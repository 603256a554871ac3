"""Model classes for SGLang's registry: the DSpark draft of MiniMax-M3 and the targets it drafts for.

SGLang scans this package; a module's `EntryClass` is registered under the class names that checkpoints carry.
"""
