#include "parallel/communicator.h"
