#define LTRAIN_JSON_TEMPLATE template
#include "base/json/json.h"
