package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// header says what was measured where.
func header(o options, peers, missing []candidate) string {
	var b strings.Builder
	fmt.Fprintf(&b, "## bench %s\n\n", time.Now().UTC().Format("2006-01-02 15:04 MST"))
	cpus := fmt.Sprintf("%d CPUs", runtime.NumCPU())
	if n := processors(); n != runtime.NumCPU() {
		cpus += fmt.Sprintf(" of which %d may be used", n)
	}
	fmt.Fprintf(&b, "- machine: %s, %s, %s memory, %s, %s; load average at start %s\n", cpuModel(), cpus, memorySize(), firstLine("uname", "-srm"), runtime.Version(), loadAverage())
	fmt.Fprintf(&b, "- Redis: %s\n", firstLine("redis-server", "--version"))
	for _, c := range o.proxies {
		fmt.Fprintf(&b, "- %s: %s\n", c.name, firstLine(c.path, "--version"))
	}
	for _, c := range peers {
		version := "does not tell its version"
		if c.version != "" {
			version = strings.TrimSpace(strings.TrimPrefix(firstLine(c.path, c.version), c.path))
		}
		if len(c.serves) == 1 {
			version += fmt.Sprintf(" (only with the %s backend)", c.serves[0])
		}
		fmt.Fprintf(&b, "- %s: %s\n", c.name, version)
	}
	for _, c := range missing {
		fmt.Fprintf(&b, "- %s: not on this machine (%s names its path)\n", c.name, peerVariable(c.name))
	}
	if o.generator == benchGenerator {
		fmt.Fprintf(&b, "- %s cannot send mixtures of commands or connect anew, so these workloads are missing\n", o.generator)
	}
	threads := ""
	if n := loadThreads(processors()); o.generator == goGenerator && n > 1 {
		threads = fmt.Sprintf(" on %d threads", n)
	}
	fmt.Fprintf(&b, "- load: %s%s, %d connections unless said, %d rounds of about %s per front end; one worker thread each\n",
		o.generator, threads, o.clients, o.rounds, o.roundTime)
	return b.String()
}

// firstLine is what a program says first, on whichever output.
func firstLine(path string, args ...string) string {
	out, err := exec.Command(path, args...).CombinedOutput()
	if line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n"); line != "" {
		return line
	}
	return fmt.Sprint(err)
}

// processors is how many of them the program and its children have, a container's quota included.
func processors() int { return runtime.GOMAXPROCS(0) }

func cpuModel() string { return procField("/proc/cpuinfo", "model name", runtime.GOARCH) }

func memorySize() string { return procField("/proc/meminfo", "MemTotal", "unknown") }

// procField finds the value of a "name: value" line.
func procField(file, name, otherwise string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return otherwise
	}
	for line := range strings.Lines(string(text)) {
		if field, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(field) == name {
			return strings.TrimSpace(value)
		}
	}
	return otherwise
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}
