package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// publicCases says which tests cover what users of comparable proxies, near-caches and
// client libraries have run into. The ids are those of the collection that the project
// keeps of such reports: HS handshake, PR protocol, PL pipelining, BG memory, TX
// transactions, BL blocking, PS Pub/Sub, SC splitting and scanning, EV scripts, DB
// databases, AU authentication, FO failover, CN connections, NC near-cache, TL tools, OP
// operation.
var publicCases = map[string]string{
	"HS-01": "proxy.TestRawInput",                                                                          // an unsupported command drops the connection
	"HS-02": "proxy.TestInfo proxy.TestLoadingIsPassedOn test.TestClients test.TestStartsBeforeItsBackend", // readiness probes
	"HS-03": "proxy.TestInfo proxy.TestInfoSections proxy.TestHello discovery.TestCompareVersions",         // the backend's version, of several the lowest
	"HS-04": "proxy.TestHello proxy.TestRawInput",                                                          // HELLO half supported
	"HS-05": "proxy.TestAuthIsThatOfRedis",                                                                 // HELLO and passwords
	"HS-06": "proxy.TestClientSetInfo test.TestClients",                                                    // CLIENT SETINFO before 7.2
	"HS-07": "proxy.TestDesktopTools differential.TestEveryCommand",                                        // desktop tools

	"PR-01": "proxy.TestRawInput",                             // inline commands
	"PR-02": "proxy.TestRawInput proxy.TestAuthIsThatOfRedis", // several inline commands in one packet
	"PR-03": "proxy.TestRawInput",                             // empty and null arrays
	"PR-04": "proxy.TestRawInput proxy.TestNothingBehindBadBytes",
	"PR-05": "proxy.TestCuts",                                              // zero-length values, cut anywhere
	"PR-06": "proxy.TestRawInput differential.TestArity",                   // arity
	"PR-07": "proxy.TestNestedReplies",                                     // nested replies
	"PR-08": "proxy.TestBinaryKeys slot.TestOfAgreesWithRedis",             // binary keys
	"PR-09": "proxy.TestPipeMode test.TestCLIPipe",                         // redis-cli --pipe
	"PL-01": "proxy.testSlowShard",                                         // request order over shards
	"PL-02": "proxy.TestOwnAnswersKeepTheirPlace proxy.testSlowShard",      // own answers do not overtake
	"PL-03": "proxy.TestLateReply proxy.TestLateReplies",                   // late replies
	"PL-04": "proxy.TestLeavingClients",                                    // clients that leave
	"PL-05": "proxy.TestBackendDies proxy.TestDeadLane",                    // every request is answered
	"BG-01": "proxy.TestBurstIsGivenBack test.TestMemoryOfTheLargestValue", // memory is given back
	"BG-02": "proxy.TestSplitCommandsLeaveNothing",                         // multi-key commands leak
	"BG-03": "proxy.TestWriteFirstReadLater proxy.TestNeverReading test.TestMemoryWhenAClientNeverReads",
	"BG-04": "proxy.TestSlowReader proxy.TestBehindSlowReaders", // slow readers
	"BG-05": "proxy.TestLongReplies",                            // replies of many elements

	"TX-01": "proxy.TestTransactions proxy.testClusterSessions test.TestClients", // redis-py's pipeline
	"TX-02": "proxy.testClusterSessions differential.TestCluster",                // MULTI and first command in one packet
	"TX-03": "proxy.TestTransactions proxy.TestTransactionPublishesAtExec",       // own answers inside MULTI
	"TX-04": "proxy.TestTransactionsDoNotMix",                                    // connections of transactions
	"TX-05": "proxy.TestTransactionsDoNotMix",                                    // transactions mix
	"TX-06": "proxy.TestWatch proxy.TestTransactions",                            // after a failed WATCH

	"BL-01": "proxy.TestBlocking proxy.TestManyBlockedClients", // others are not held up
	"BL-02": "proxy.TestBlocking proxy.TestWaitThroughProxy",   // the command's own time
	"BL-03": "proxy.TestLeavingBlockedClient",                  // no element lost
	"BL-04": "proxy.TestBlocking",                              // order behind a blocking command
	"BL-05": "proxy.testClusterSessions",                       // refused over slots

	"PS-01": "proxy.TestSubscriberMode",
	"PS-02": "proxy.TestManySubscriptions",
	"PS-03": "proxy.TestSubscribersOutliveTheirBackend proxy.testSubscribersFailover",
	"PS-04": "proxy.testKeyEvents",

	"SC-01": "proxy.TestScanCluster",
	"SC-02": "proxy.TestScanCluster",
	"SC-03": "proxy.testWholeKeySpace proxy.TestOneShardDown",
	"SC-04": "proxy.testSplitCommands",
	"SC-05": "proxy.testSplitCommands",
	"SC-06": "proxy.testKeyPositions proxy.testEveryCommand",
	"SC-07": "proxy.testHashTags slot.TestOfAgreesWithRedis",

	"EV-01": "proxy.testClusterScripts proxy.TestManyKeysOfAScript",
	"EV-02": "proxy.testClusterScripts",
	"EV-03": "proxy.testScriptsAfterChanges proxy.TestScriptsComeBack proxy.TestSentinel",
	"EV-04": "proxy.TestRawInput",
	"EV-05": "proxy.TestNestedReplies",

	"DB-01": "proxy.TestRawInput",
	"DB-02": "proxy.testClusterSessions proxy.TestRawInput",
	"DB-03": "proxy.TestDatabasesStayApart",

	"AU-01": "proxy.TestRawInput proxy.TestAuthIsThatOfRedis",
	"AU-02": "proxy.TestBackendPassword proxy.TestOwnLoginFails test.TestMistakes",
	"AU-03": "conf.TestCredentials conf.TestParseBackend discovery.TestStandalone proxy.TestPasswordsAreNotTold discovery.TestBackendNeverPrintsPasswords",
	"AU-04": "proxy.TestReconnectsLogIn proxy.TestBackendPassword",

	"FO-01": "proxy.testReshardingUnderLoad proxy.TestMovedIsFollowed",
	"FO-02": "proxy.testOpenMigration proxy.TestAskIsFollowed",
	"FO-03": "proxy.TestTryAgain proxy.TestUncoveredSlot proxy.testOpenMigration",
	"FO-04": "proxy.TestSentinel proxy.testClusterFailover proxy.TestReadOnly",
	"FO-05": "proxy.testKilledMaster proxy.TestSentinel",
	"FO-06": "proxy.testFrozenMaster",
	"FO-07": "test.TestStartsBeforeItsBackend proxy.testDeadSeeds discovery.TestCluster",
	"FO-08": "proxy.TestHostNameIsLookedUpAgain",

	"CN-01": "proxy.TestIdleBackendConnection",
	"CN-02": "proxy.TestVanishedClients",
	"CN-03": "proxy.TestNoReconnectStorm",
	"CN-04": "proxy.TestClientLimit",
	"CN-05": "proxy.TestShortConnections",

	"NC-01": "proxy.TestNothingOutlivesItsStream proxy.TestNoStaleReadsUnderFaults",
	"NC-02": "proxy.TestSlowFetchDoesNotBecomeFresh proxy.TestNoStaleReads",
	"NC-03": "proxy.TestOwnWritesAreSeen",
	"NC-04": "proxy.TestEntryDoesNotOutliveItsKey",
	"NC-05": "proxy.TestEveryKindOfWriteIsSeen",
	"NC-06": "proxy.TestFlushEmptiesTheCache",
	"NC-07": "proxy.TestCachedReads",
	"NC-08": "proxy.TestCachedReads proxy.TestHello",
	"NC-09": "proxy.TestEveryKindOfWriteIsSeen",
	"NC-10": "proxy.TestReadOfWrongTypeIsNotCached proxy.TestBusyServerIsNotCached proxy.TestCachedReads",
	"NC-11": "proxy.TestCachedReads",
	"NC-12": "proxy.TestCacheStaysWithinItsBudget",
	"NC-13": "proxy.TestFillIsNoChange",
	"NC-14": "proxy.TestTwoProxies",

	"TL-01": "test.TestBenchmark",
	"TL-02": "test.TestInterruptedBenchmark",
	"TL-03": "test.TestCLIModes test.TestCLIOneShot test.TestCLIOnTerminal test.TestCLIScan proxy.TestMonitor",

	"OP-01": "test.TestGracefulStop test.TestSecondSignalStopsAtOnce test.TestDrainTimeout",
}

// TestPublicCasesHaveTests: every case has a test, and every test that is named here
// exists and is called: those in lower case are parts of one that is.
func TestPublicCasesHaveTests(t *testing.T) {
	const cases = 91
	if len(publicCases) != cases {
		t.Errorf("%d cases are listed, want %d", len(publicCases), cases)
	}
	known := testFunctions(t, "..")
	for id, tests := range publicCases {
		names := strings.Fields(tests)
		if len(names) == 0 {
			t.Errorf("%s has no test", id)
		}
		for _, name := range names {
			if !known[name] {
				t.Errorf("%s names %s, which does not exist or is not called", id, name)
			}
		}
	}
}

// testFunctions are the tests below dir, as package.Function; a function in lower case
// is one if a test file calls it.
func testFunctions(t *testing.T, dir string) map[string]bool {
	t.Helper()
	declared, called := make(map[string]bool), make(map[string]bool)
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg := strings.TrimSuffix(file.Name.Name, "_test") + "."
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				declared[pkg+n.Name.Name] = n.Recv == nil
			case *ast.CallExpr:
				if f, is := n.Fun.(*ast.Ident); is {
					called[pkg+f.Name] = true
				}
			case *ast.KeyValueExpr: // tables of parts
				if f, is := n.Value.(*ast.Ident); is {
					called[pkg+f.Name] = true
				}
			case *ast.CompositeLit:
				for _, e := range n.Elts {
					if f, is := e.(*ast.Ident); is {
						called[pkg+f.Name] = true
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	tests := make(map[string]bool)
	for name, is := range declared {
		_, function, _ := strings.Cut(name, ".")
		tests[name] = is && (strings.HasPrefix(function, "Test") || called[name])
	}
	return tests
}
