"""scalable_bo inside other optimisation frameworks, one module each;
a module needs its framework, an extra of this package.
"""
