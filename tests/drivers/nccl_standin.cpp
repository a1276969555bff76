// Stands in for libnccl.so.2: its version alone.
extern "C" int ncclGetVersion(int* version) {
  *version = STANDIN_VERSION;
  return 0;
}
