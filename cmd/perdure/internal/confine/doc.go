// Package confine executes commands so that they can't read what is the server's own: its data folder,
// its files with keys, its environment. The shell of a supervisor inside "perdure serve" uses it.
//
// # How it works
//
// [New] chooses one of two ways. With a user, commands are executed as that user. Without one, and
// only if this process is not root, each command gets user, mount, PID and IPC namespaces of its own,
// in which the hidden paths are covered and /proc shows no other process.
//
// [Confinement.Apply] changes an exec.Cmd so that it starts this program's own executable again, under
// the name [helperName]. [Enter], which main calls first, recognizes that name. It sets up the
// namespaces or changes the user, drops groups, capabilities and inherited descriptors, and executes
// the command in its place. The helper has no secret: it begins with the command's environment.
//
// # What it is not
//
// It limits neither CPU nor memory nor the network, and hides no other files. In namespaces a command
// has the user id of the server: what that user owns elsewhere can be read.
//
// # Invariants
//
//   - New executes a probe in the confinement. It fails unless the probe reports that every hidden path
//     and the environment of this process are out of reach.
//   - The helper executes the command only if every step before has succeeded.
package confine
