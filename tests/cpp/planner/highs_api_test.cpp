// poet's declarations of HiGHS's C interface against its header, where that is installed.
#include <interfaces/highs_c_api.h>

#include <type_traits>

#include "planner/backends/highs_api.h"

namespace poet::planner {
namespace {

// Top-level const of an argument is no part of a function's type, so these are compared as they
// are.
#define POET_SAME(member, function) \
  static_assert(std::is_same_v<decltype(HighsApi::member), decltype(&function)>)

POET_SAME(create, Highs_create);
POET_SAME(destroy, Highs_destroy);
POET_SAME(version, Highs_version);
POET_SAME(getSizeofHighsInt, Highs_getSizeofHighsInt);
POET_SAME(setBoolOptionValue, Highs_setBoolOptionValue);
POET_SAME(setIntOptionValue, Highs_setIntOptionValue);
POET_SAME(setDoubleOptionValue, Highs_setDoubleOptionValue);
POET_SAME(setStringOptionValue, Highs_setStringOptionValue);
POET_SAME(passLp, Highs_passLp);
POET_SAME(passMip, Highs_passMip);
POET_SAME(addRows, Highs_addRows);
POET_SAME(setSolution, Highs_setSolution);
POET_SAME(zeroAllClocks, Highs_zeroAllClocks);
POET_SAME(run, Highs_run);
POET_SAME(getModelStatus, Highs_getModelStatus);
POET_SAME(getIntInfoValue, Highs_getIntInfoValue);
POET_SAME(getDoubleInfoValue, Highs_getDoubleInfoValue);
POET_SAME(getObjectiveValue, Highs_getObjectiveValue);
POET_SAME(getSolution, Highs_getSolution);

static_assert(kHighsError == kHighsStatusError);
static_assert(kHighsRowwise == kHighsMatrixFormatRowwise);
static_assert(kHighsMinimize == kHighsObjSenseMinimize);
static_assert(kHighsModelEmpty == kHighsModelStatusModelEmpty);
static_assert(kHighsOptimal == kHighsModelStatusOptimal);
static_assert(kHighsInfeasible == kHighsModelStatusInfeasible);
static_assert(kHighsSolutionFeasible == kHighsSolutionStatusFeasible);

}  // namespace
}  // namespace poet::planner
