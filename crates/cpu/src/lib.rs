//! The executor that runs programs without a GPU, and its fast kernels
