package test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestFaultsHaveTests: each row of the table of faults names tests, and all of them exist and are called.
func TestFaultsHaveTests(t *testing.T) {
	text, err := os.ReadFile("../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "\n## Faults\n")
	table, _, ends := strings.Cut(table, "\n## ")
	if !found || !ends {
		t.Fatal("there is no section about faults")
	}
	known := testFunctions(t, "..")
	names := regexp.MustCompile("`([a-z]+\\.[tT]est\\w+)`")
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 4 || cells[0] == " fault" {
			continue
		}
		rows++
		tests := names.FindAllStringSubmatch(cells[3], -1)
		if len(tests) == 0 {
			t.Errorf("%s: no test", cells[0])
		}
		for _, m := range tests {
			if !known[m[1]] {
				t.Errorf("%s: names %s, which does not exist or is not called", cells[0], m[1])
			}
		}
	}
	if rows < 20 {
		t.Errorf("%d rows", rows)
	}
}
