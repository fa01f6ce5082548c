"""Callbacks for what people train with, a module for each; a framework is imported by its own module alone.

    from gradcheck_accum.callbacks.transformers import AccumulationCallback   # Transformers' Trainer
    from gradcheck_accum.callbacks.lightning import AccumulationCallback      # Lightning
    from gradcheck_accum.callbacks.ignite import AccumulationHandler          # Ignite

All of them do what `gradcheck_accum.watch` does, for as long as the framework trains; a loop of one's own, and one that
Accelerate prepares, stands in a ``with gradcheck_accum.watch(...)`` instead.
"""
