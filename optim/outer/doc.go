// Package outer builds the optimizer of replicas that seldom talk as compute graphs, so that it runs as shaders on any
// device.
//
// K replicas train on their own, each with its own optimizer. Every H steps they exchange what they have learned, as in
// DiLoCo (Douillard et al., arXiv:2311.08105, algorithm 1): the mean of how far they have moved is the gradient of an
// outer optimizer, SGD with Nesterov's momentum. The weights are divided into fragments that are exchanged at different
// steps, and an exchange may take some steps, during which the replicas go on (Streaming DiLoCo, arXiv:2501.18512,
// sections 2.1 and 2.2). With Muon as the replicas' optimizer and messages of 2 bits with error feedback this is close
// to MuLoCo (arXiv:2505.23725, section 3).
//
// # One exchange of a fragment
//
// Ω are the outer weights, M their momentum, w_i the weights of replica i, R_i its residue. All replicas know the base
// B: the outer weights as messages have described them. Q rounds to the format of messages, see Formats.
//
//	Send    on each replica         Δ_i = B − w_i;  q_i = Q(Δ_i + R_i);  R_i ← Δ_i + R_i − q_i;  s_i = w_i
//	Add     on the owner            sums q_i in the order of replicas
//	Step    on the owner            g = Σ q_i / K;  M ← μ·M + g;  Ω' = Ω − η·(g + μ·M)
//	                                c = Q(Ω' + a·(Ω' − Ω) − B)
//	Apply   on all                  B' = B + c
//	Land    on each replica, later  w_i ← B' + κ·(w_i − s_i)
//
// Land keeps the share κ of the steps that the replica has made since it sent. With a rate η of 1 and a momentum μ of 0
// the outer weights are the plain average of the replicas. In f32 the message of Step is the new base itself, and
// nothing is rounded.
//
// The owner needs no residue: what a change lacked is part of the next one, since B lacks it.
//
// A Correction changes how replicas bridge the time until an exchange lands: by a, by κ, or by s_i.
//
// # Shapes
//
// A fragment is a matrix [n, BlockSize] of f32: its parameters one after the other, padded with zeros. Programs are
// made for n blocks. Random numbers are a function of the key and of the element's position in the matrix.
package outer
