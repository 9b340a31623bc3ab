//! CUDA sources of the ops and the manifest that ties compiled binaries to them. Builds with neither.
