//go:build !linux

package mcp

import "os/exec"

// ownGroup leaves a program as it is. It ends by itself when its standard input does.
func ownGroup(*exec.Cmd) {}

// killGroup kills a program.
func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
