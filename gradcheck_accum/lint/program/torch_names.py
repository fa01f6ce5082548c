"""What the names of PyTorch, and of the libraries that people train with, mean: every list of them, in one table.

Each entry says what its names mean and what comes of it. One that states something has to be right, as findings rest on
it; one that leaves something unknown can be broad. A name may have several meanings, by what it is called on. Where a
name means something that no other does, the function that carries it out says so (``METHODS``, ``LIBRARY``).
"""

from __future__ import annotations

from math import e, pi
from typing import TypeVar

from gradcheck_accum.lint.program.names import Effect

STATES, LEAVES_OPEN = Effect.STATES, Effect.LEAVES_OPEN

Entry = TypeVar("Entry")


class Names(frozenset[str]):
    """The names that mean one thing."""

    what: str
    effect: Effect

    def __new__(cls, what: str, effect: Effect, *names: str) -> Names:
        made = super().__new__(cls, names)
        made.what, made.effect = what, effect
        return made


class Table(dict[str, Entry]):
    """The same, where each name tells something more."""

    def __init__(self, what: str, effect: Effect, entries: dict[str, Entry]) -> None:
        super().__init__(entries)
        self.what, self.effect = what, effect


# What is done to gradients.

BACKWARD = Names("runs backward", STATES, "backward", "manual_backward")
GATES = Names(
    "the argument that tells a callable that runs backward to step as well", STATES, "update_grad", "need_update"
)
ASKED_OF_OPTIMIZERS = Names(
    "ends or begins a window, or takes out AMP's scale", STATES, "step", "zero_grad", "unscale_"
)
CLIPS = Names(
    "clips gradients",
    STATES,
    *("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grads_with_norm_"),
)
CLIPS_OF_FRAMEWORKS = Names("clips the gradients of the optimizer that it is given", STATES, "clip_gradients")
HOOKS_BEFORE_STEPS = Names("has a function called before every step", STATES, "register_step_pre_hook")
HOOKS_AFTER_STEPS = Names("has a function called after every step", STATES, "register_step_post_hook")
PAUSES = Names("makes a context in which gradients stay on their rank", STATES, "no_sync", "no_backward_sync")
SYNC_SWITCH = "require_backward_grad_sync"
"""The attribute of DistributedDataParallel that ``no_sync`` sets."""
ENGINE_BOUNDARY = "is_gradient_accumulation_boundary"
"""The method of DeepSpeed's engines that says whether a window is complete: nothing else has it."""
DRIVER = "Engine"
"""Ignite's class, which is given a function that it calls with every batch."""
PARAMETERS = Names("gives the parameters of a network", STATES, "parameters", "named_parameters")
NO_GRAPHS = Names("makes a context without graphs", STATES, "no_grad", "inference_mode")

# What changes a tensor in place: a gradient, or a loss. Whatever else ends in an underscore leaves its values unknown.

DIVIDES = Names("divides a loss", STATES, "div", "divide", "true_divide")
DIVIDES_IN_PLACE = Names("divides what it is called on", STATES, *(f"{name}_" for name in DIVIDES))
MULTIPLIES = Names("multiplies a loss", STATES, "mul", "multiply")
MULTIPLIES_IN_PLACE = Names("multiplies what it is called on", STATES, *(f"{name}_" for name in MULTIPLIES))
SETS_IN_PLACE = Names("clears gradients", STATES, "zero_", "fill_")
BOUNDS_IN_PLACE = Names("clips what it is called on", STATES, "clamp_", "clip_")
KEEPS_VALUES = Names(
    "leaves the values as they are, where they are finite",
    STATES,
    *("detach_", "nan_to_num_", "requires_grad_", "share_memory_"),
)
MOVES_WEIGHTS = Names(
    "moves weights by hand, which no window does",
    LEAVES_OPEN,
    *("add_", "sub_", "copy_", "addcdiv_", "addcmul_", "lerp_"),
)
BLENDS_IN_PLACE = Names("may take weights into an average", STATES, "lerp_", "add_")
FOREACH = "_foreach_"
"""How the name of a function begins that does to many tensors at once what the rest of its name says."""
BLENDS_ALL = f"{FOREACH}lerp_"

# Losses.

LEAVE_TARGETS_OUT = Names(
    "a loss that leaves targets out by their value, which has a default",
    STATES,
    *("CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss"),
)
SUMS_PRODUCTS = Names("multiplies two vectors, and adds up the products", STATES, "dot", "vdot")
REDUCES = Names("takes the mean or the sum of all elements", STATES, "mean", "sum", "nansum", "nanmean")
READS = Names("reads the number off a loss", STATES, "item", "tolist", "numpy")
ASKS_EACH = Names(
    "asks each element something: a mask",
    STATES,
    *("bool", "isnan", "isinf", "isfinite", "isposinf", "isneginf"),
    *("eq", "ne", "gt", "ge", "lt", "le", "greater", "greater_equal", "less", "less_equal", "not_equal"),
    *("logical_not", "logical_and", "logical_or", "logical_xor"),
)
COUNTS_ELEMENTS = Names("counts the elements", STATES, "numel", "nelement")
NO_LOSS = Names(
    "makes something of a loss that is none",
    LEAVES_OPEN,
    *(*ASKS_EACH, *COUNTS_ELEMENTS, "all", "any", "dim", "size", "chunk", "split", "argmax", "max", "min", "topk"),
)
MAKES_WORDS = Names(
    "a method of texts",
    STATES,
    *("split", "rsplit", "strip", "lstrip", "rstrip", "lower", "upper", "replace", "removeprefix", "removesuffix"),
)
CUTS_GRAPH = Names("gives a loss without its graph", STATES, "detach", "detach_")
METERS = Names(
    "keeps the mean of the numbers that it is given",
    STATES,
    *("AverageMeter", "AvgMeter", "AverageValueMeter", "Averager", "RunningAverage", "RunningMean", "MeanMetric"),
)
SHOWS = Names(
    "shows a number to a person",
    STATES,
    *("print", "info", "debug", "warning", "log", "write", "format", "plot", "dump", "dumps"),
    *("add_scalar", "log_metric", "log_metrics", "log_dict", "set_postfix", "set_postfix_str", "set_description"),
)

COMPUTES = ("math.", "numpy.", "np.", "torch.")
"""Where functions come from that compute, and show nothing to anybody."""

MEASURES = Names(
    "computes from gradients how great they are",
    STATES,
    *("norm", "vector_norm", "matrix_norm", "get_total_norm", "_foreach_norm", "stack", "cat"),
    *("abs", "square", "pow", "sum", "mean", "max", "amax", "std", "item"),
)

# Data, and the tensors that a source makes.

CASTS = Names(
    "gives the same on another device or in another precision",
    STATES,
    *("to", "cpu", "cuda", "half", "bfloat16", "float", "double"),
)
KEEPS_NUMBERS = Names("gives the same numbers", STATES, *CASTS, "clone", "detach")
KEEPS_ROWS = Names(
    "gives as many rows as it was asked of",
    STATES,
    *(*KEEPS_NUMBERS, *DIVIDES, *MULTIPLIES),
    *("astype", "long", "bool", "int", "contiguous", "masked_fill", "clamp", "abs", "exp", "log", "sqrt", "square"),
    *("add", "sub", "neg", "round", "sign", "tanh", "sigmoid", "cumsum", "softmax", "log_softmax", "nan_to_num"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "erf", "floor", "ceil", "trunc", "frac"),
    *("rsqrt", "reciprocal", "log1p", "log2", "log10", "expm1", "exp2", "relu", "maximum", "minimum", "clip", "lerp"),
    *("poisson", "bernoulli", "one_hot", "normalize", "pow"),
)
KEEPS_ROWS_ALONG = Names(
    "gives as many rows, if it works along another dimension than the first",
    STATES,
    *("unsqueeze", "squeeze", "argmax", "argmin", "flatten", "amax", "amin", "sum", "mean", "prod", "std", "var"),
    *("norm", "logsumexp", "all", "any"),
)
SWAPS_DIMENSIONS = Names("exchanges two dimensions", STATES, "transpose", "swapaxes", "swapdims", "movedim")
GIVES_AN_ORDER = Names("gives all places along a dimension, in some order", STATES, "argsort")
LARGEST_OR_SMALLEST = Names("gives one element, or one along a dimension", STATES, "max", "min")
GIVES_NO_DATA = Names(
    "makes a number of data that nothing is known of",
    LEAVES_OPEN,
    *(*COUNTS_ELEMENTS, *LARGEST_OR_SMALLEST, "item", "dim", "ndim", "tolist"),
)
COUNTS = Names("adds up all elements of data", STATES, "sum", "count_nonzero")
RESHAPES = Names("gives data another shape", STATES, "view", "reshape")
SPLITS = Names("cuts data into pieces of so many rows", STATES, "split")
CUTS = Names("cuts data into so many pieces", STATES, "chunk", "tensor_split", "array_split")
CUTS_ALIKE = Names("cuts data into pieces of one size, and a last one of what is left", STATES, "chunk")
JOINS = Names("joins data along a dimension that it has", STATES, "cat", "concat")
MAKES_DATA = Names(
    "makes a tensor that is no model's",
    STATES,
    *("arange", "as_tensor", "empty", "eye", "from_numpy", "full", "linspace", "ones", "rand", "randint", "randn"),
    *("randperm", "tensor", "zeros"),
)
MAKES_ARRAYS = Names(
    "makes an array, if it is given a size",
    STATES,
    *("arange", "linspace", "normal", "permutation", "rand", "randint", "randn", "standard_normal", "uniform"),
)
MAKES_CONSTANTS = Names("makes the same each time", STATES, "arange", "eye", "full", "linspace", "ones", "zeros")
MAKES_AT_RANDOM = Names("makes another each time", STATES, "rand", "randint", "randn")
CHOOSES_AT_RANDOM = Names("chooses some of what it is given, others each time", STATES, "choices", "sample")
CHOOSES_ONE = Names("chooses one of what it is given, or so many", STATES, "choice")
GENERATORS = Table(
    "makes a generator of random numbers, which has the functions of a module",
    STATES,
    {
        "random.Random": "random",
        "random.SystemRandom": "random",
        "numpy.random.default_rng": "numpy.random",
        "numpy.random.RandomState": "numpy.random",
    },
)
CONSTANTS = Table(
    "a number that a module has a name for",
    STATES,
    {f"{module}.{name}": value for module in ("math", "numpy", "torch") for name, value in (("pi", pi), ("e", e))},
)
TAKES_SIZES = Names("is given one size after another", STATES, "empty", "eye", "ones", "rand", "randn", "zeros")
TAKES_VALUES = Names("makes data of values, and is given no size", STATES, "tensor", "as_tensor", "from_numpy")
PLACE_OF_SIZE = Table(
    "which argument is the number of rows, if not the first",
    STATES,
    {"randint": -1, "linspace": 2, "normal": 2, "uniform": 2},
)
READS_FILES = Names(
    "reads what is in a file", STATES, *("load", "loadtxt", "genfromtxt", "fromfile", "from_file", "memmap")
)
SAMPLES_ALL = Names("a sampler that draws as many rows as there are", STATES, "RandomSampler", "SequentialSampler")
MEMBERS_OF_LOADERS = Names("gives what a loader draws from", STATES, "dataset", "sampler", "batch_sampler")
PROGRESS_BARS = Names("goes over what it is given and shows how far it is", STATES, "tqdm", "track", "trange")

# Objects.

OPTIMIZERS = Names(
    "an optimizer's class, whichever library has it",
    STATES,
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "BertAdam", "Lamb", "LBFGS", "Lion"),
    *("Muon", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam"),
)
WRAPPERS = Names(
    "gives the model that it is given, in another form",
    STATES,
    *("DataParallel", "DistributedDataParallel", "DDP", "compile", "FullyShardedDataParallel", "FSDP", "deepcopy"),
)
AVERAGES_OVER_RANKS = Names(
    "averages the gradients of the model that it is given over the ranks, in every backward",
    STATES,
    "DistributedDataParallel",
)
STARTS_PROCESSES = Names(
    "calls what it is given first in several processes, with the number of the process and further arguments",
    STATES,
    *("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"),
)
SAME_MODEL = Names("gives the very model that it is called on", STATES, *CASTS, "train", "eval", "apply")
SAME_ENGINE = Names("gives the very engine that it is called on", STATES, *CASTS, *PARAMETERS, "train", "eval")
RUNS_MODEL = Names(
    "a member of a model by which it is run itself",
    STATES,
    *("forward", "module", "loss", "compute_loss", "training_step", "generate"),
)
PREPARES_ONE = Names("gives back the one thing that it is given first", STATES, "setup_module", "unwrap_model")
PREPARES = Names(
    "gives back what it is given, but for schedulers, which move by themselves",
    STATES,
    *(*PREPARES_ONE, "prepare", "setup", "setup_dataloaders", "setup_optimizers"),
)
HORIZONS = Table(
    "a scheduler's class, or a function that makes one: the parameter that says for how many moves, and its position",
    STATES,
    {
        "CosineAnnealingLR": ("T_max", 1),
        "LinearLR": ("total_iters", 3),
        "PolynomialLR": ("total_iters", 1),
        "OneCycleLR": ("total_steps", 2),
        "get_scheduler": ("num_training_steps", 3),
        "get_linear_schedule_with_warmup": ("num_training_steps", 2),
        "get_cosine_schedule_with_warmup": ("num_training_steps", 2),
        "get_cosine_with_hard_restarts_schedule_with_warmup": ("num_training_steps", 2),
        "get_polynomial_decay_schedule_with_warmup": ("num_training_steps", 2),
    },
)
"""Others end before training does (a warm-up), begin again, or do not say."""
NAMES_OF_LENGTH = Names(
    "says for how many moves a scheduler is made, as a parameter of the project's own",
    STATES,
    *(place[0] for place in HORIZONS.values()),
    *("num_train_steps", "total_training_steps", "training_steps", "max_steps", "max_iters", "total_iter"),
)
LENGTH_OF_OWN_SCHEDULE = Names(
    "says for how many steps an optimizer plans its learning rate by itself", STATES, "t_total"
)
SCHEDULERS = "torch.optim.lr_scheduler."
"""How the paths of PyTorch's schedulers begin."""
HAVE_SCHEDULERS = (SCHEDULERS, "torch.optim.swa_utils.SWALR", "transformers.", "diffusers.")
"""How the paths of schedulers begin."""
AVERAGES = Table(
    "the class of a moving average of weights: the method by which it takes them in, at every call",
    STATES,
    {
        "AveragedModel": "update_parameters",
        "ModelEma": "update",
        "ModelEmaV2": "update",
        "ModelEmaV3": "update",
        "EMA": "update",
        "EMAModel": "step",
        "ExponentialMovingAverage": "update",
    },
)
HAVE_AVERAGES = ("torch.", "timm.", "diffusers.", "torch_ema.", "ema_pytorch.")
"""The libraries whose averages these are."""
