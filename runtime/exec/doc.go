// Package exec runs graphs on a device. Graphs go through it in three steps:
//
//	NewPlan    fuses the ops of each graph into groups, chooses a kernel for each group and plans memory; see Plan
//	Plan.Load  allocates the memory, compiles the kernels and uploads the constants; see Session
//	Session    enqueues programs, one per graph, and transfers of variables, inputs and outputs
//
// # Kernels and memory
//
// Kernels and the plan of memory depend on each other. A kernel binds one array for values that share memory, so its
// text depends on the plan. The plan depends on the kernels, since each kernel variant needs other scratch memory.
// NewPlan and Load cut the circle in this order:
//
//  1. Each group is lowered to its kernel variants as if every value had memory of its own. Lowering asks which values
//     share memory, and the answers are kept with the variants.
//  2. The static choice of variants is planned. A plan that does not fit is refused here, before a kernel is timed.
//  3. A Chooser, if there is one, chooses among the variants, usually by timing them. Memory is planned again with its
//     choice. If that plan does not fit, the static plan stays.
//  4. Load records the commands of each program. If values of a group share memory in the plan that did not share it in
//     step 1, the group is lowered once more, with the plan's answers, and the variant with the chosen name is taken.
//
// Step 1 is the same for equal graphs and limits, so the last results are kept for the whole process.
//
// # Buffers of variables
//
// A variable has a buffer of its own, or a Pool of equal buffers among which each run selects by a Binding. A program
// is recorded once, on names of memory rather than on buffers. The session makes a device program of it for each
// Binding, when the Binding is first used.
package exec
