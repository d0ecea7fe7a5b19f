"""The paper's formulas: pure functions of numbers and arrays, one module per question.

``size``, ``recovery``, ``decode``, ``slack``, ``queueing``, ``capacity``, ``pooling`` and ``cost``
need numpy alone and none needs another. Every argument is a number or an array in base units,
arrays broadcast, and a result has the shape of its arguments. The first line of a docstring names
the result and its unit; ``data/nomenclature.csv`` defines every name. A formula that names no
source is derived here.
"""
