// Package resp frames the Redis serialization protocol: it finds where requests
// and replies begin and end in a byte stream, and writes replies and commands.
// It copies nothing it can alias and allocates nothing in steady state.
//
// # Requests
//
// A client sends either form, freely mixed on one connection:
//
//	*<argc>\r\n ( $<len>\r\n <len bytes> \r\n ){argc}     multibulk
//	word "quoted \x41 word" 'single' \r\n                 inline
//
// [Parser] accepts exactly what Redis 7.0 accepts and answers with the same
// error texts (networking.c, processMultibulkBuffer and processInlineBuffer).
// The rules that are easily forgotten:
//
//   - A header line ends at its first \r; the byte after it is skipped unseen. So
//     are the two bytes after a bulk body. An inline command ends at \n, with or
//     without a \r before it.
//   - Redis looks for these ends with C string functions, so a NUL byte in a header
//     line or an inline command hides the end for ever: the line only grows until
//     it is too long.
//   - Numbers are canonical: no plus sign, no leading zeros, no spaces, within int64.
//   - A count of zero or less, or an empty line, is a request without arguments:
//     it is consumed and gets no reply.
//   - Nothing is reserved for a count or a length that was merely announced.
//
// A line may be [Limits].MaxInline bytes long before its end must be in sight.
// Redis applies that limit to whatever one read(2) happened to deliver; here it
// does not depend on how the stream was cut.
//
// # Replies
//
//	+<line>\r\n   simple string      _\r\n             null (RESP3)
//	-<line>\r\n   error              #t\r\n, #f\r\n    boolean
//	:<int>\r\n    integer            ,<float>\r\n      double
//	(<int>\r\n    big number
//	$<n>\r\n<n bytes>\r\n            bulk string; $-1\r\n is the RESP2 null
//	!<n>\r\n<n bytes>\r\n            bulk error
//	=<n>\r\n<3 letters>:<rest>\r\n   verbatim string
//	*<n>\r\n <n replies>             array; *-1\r\n is the RESP2 null array
//	~<n>\r\n <n replies>             set
//	><n>\r\n <n replies>             push: belongs to no request
//	%<n>\r\n <2n replies>            map
//	|<n>\r\n <2n replies> <reply>    attributes of the reply that follows them
//
// Streamed aggregates and strings ("?" for a length) are refused: no Redis sends
// them. An invalidation push, the one frame the proxy reads for its content, is
//
//	>2\r\n $10\r\ninvalidate\r\n *<n>\r\n ( $<len>\r\n<key>\r\n ){n}
//	>2\r\n $10\r\ninvalidate\r\n _\r\n                       everything was flushed
//
// [Len] measures the common small reply in one glance; [ReplyScanner] follows any
// reply through any number of reads without keeping its bytes; [Parse] builds a
// tree and is for control code and tests.
//
// # Ownership
//
// Nothing here is safe for concurrent use except through distinct values. Slices
// handed out alias the caller's buffer and live as long as its content does.
package resp
