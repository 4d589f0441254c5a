//go:build !linux

package embedded

import (
	"os"
	"syscall"
)

func childAttributes() *syscall.SysProcAttr { return nil }

func executable() (string, error) { return os.Executable() }
