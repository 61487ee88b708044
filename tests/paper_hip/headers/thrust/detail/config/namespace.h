// In place of rocThrust's: all that CuPy's complex numbers take of it.
#define THRUST_NAMESPACE_BEGIN namespace thrust {
#define THRUST_NAMESPACE_END }
