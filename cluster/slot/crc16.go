package slot

// slicing[n][b] is the CRC16 of the byte b followed by n zero bytes. Because CRCs
// are linear, eight bytes can be looked up independently of each other and
// combined, instead of each one waiting for the last.
var slicing = makeSlicing()

func makeSlicing() (t [8][256]uint16) {
	for b := range 256 {
		crc := uint16(b) << 8
		for range 8 {
			carry := crc & 0x8000
			crc <<= 1
			if carry != 0 {
				crc ^= 0x1021
			}
		}
		t[0][b] = crc
	}
	for n := 1; n < 8; n++ {
		for b := range 256 {
			crc := t[n-1][b]
			t[n][b] = crc<<8 ^ t[0][crc>>8]
		}
	}
	return t
}

func crc16(p []byte) uint16 {
	var crc uint16
	for len(p) >= 8 {
		crc = slicing[7][p[0]^byte(crc>>8)] ^ slicing[6][p[1]^byte(crc)] ^
			slicing[5][p[2]] ^ slicing[4][p[3]] ^
			slicing[3][p[4]] ^ slicing[2][p[5]] ^
			slicing[1][p[6]] ^ slicing[0][p[7]]
		p = p[8:]
	}
	for _, b := range p {
		crc = crc<<8 ^ slicing[0][byte(crc>>8)^b]
	}
	return crc
}
