package embedded

import "syscall"

// childAttributes make the kernel tell the child of its parent's death, which also
// reaches a child whose stdin some other process keeps open.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: deathSignal}
}

// executable names this program even after its file was replaced or removed.
func executable() (string, error) { return "/proc/self/exe", nil }
