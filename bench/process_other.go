//go:build !linux

package main

import "syscall"

// dieWithParent has no counterpart here.
func dieWithParent() *syscall.SysProcAttr { return nil }
