"""Callbacks for training frameworks, one module each; only that module imports the framework.

    from gradcheck_accum.callbacks.transformers import AccumulationCallback   # Transformers' Trainer
    from gradcheck_accum.callbacks.lightning import AccumulationCallback      # Lightning
    from gradcheck_accum.callbacks.ignite import AccumulationHandler          # Ignite

Each does what `gradcheck_accum.watch` does while the framework trains. Wrap a loop of your own, Accelerate's included,
in ``with gradcheck_accum.watch(...)`` instead.
"""
