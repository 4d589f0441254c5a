package slot

import (
	"slices"
	"testing"
)

func TestParseRange(t *testing.T) {
	for _, s := range []string{"0", "7", "0-5460", "16383", "16383-16383"} {
		r, err := ParseRange(s)
		if err != nil {
			t.Errorf("ParseRange(%q): %v", s, err)
			continue
		}
		if again, err := ParseRange(r.String()); err != nil || again != r {
			t.Errorf("ParseRange(%q) = %v, %v, want %v", r.String(), again, err, r)
		}
	}
	for _, s := range []string{"", "-", "-1", "16384", "0-16384", "5-4", "a", "1-b", "1-2-3", "[7->-id]"} {
		if r, err := ParseRange(s); err == nil {
			t.Errorf("ParseRange(%q) = %v, want an error", s, r)
		}
	}
}

func TestNormalize(t *testing.T) {
	tests := []struct{ in, want []Range }{
		{nil, nil},
		{[]Range{{5, 9}, {0, 3}}, []Range{{0, 3}, {5, 9}}},
		{[]Range{{4, 9}, {0, 3}}, []Range{{0, 9}}},
		{[]Range{{0, 9}, {2, 3}, {9, 12}}, []Range{{0, 12}}},
		{[]Range{{16383, 16383}, {0, 16382}}, []Range{{0, 16383}}},
	}
	for _, tt := range tests {
		if got := Normalize(slices.Clone(tt.in)); !slices.Equal(got, tt.want) {
			t.Errorf("Normalize(%v) = %v, want %v", tt.in, got, tt.want)
		}
	}
}
