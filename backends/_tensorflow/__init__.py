"""TensorFlow: textbook attention and layers, and Keras on the TensorFlow engine.

tensorflow and keras are imported when the backend is created.
"""
