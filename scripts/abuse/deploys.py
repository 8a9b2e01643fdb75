"""`thorns deploy`: addresses, keys, certificates and settings of clients that cannot be used."""

from abuse.case import Case
from abuse.damage import all_of, copy, folder, mode, write

NODE = "--node-config 'partition-id=0 num-partitions=2'"
TLS = "--root-certificates keys/ca.crt --key keys/client-0"
CLIENT = f"deploy client --superlink 127.0.0.1:9 {TLS}"

CASES = (
    Case("deploy", 2, "Usage: "),
    Case("deploy lokal", 2, "No such command 'lokal'"),
    Case("deploy local --clients 0", 2, "Invalid value for '--clients'"),
    Case("deploy local --clients 2 -c clients=3", 2, "--clients 2 and -c clients=3 say different numbers of clients"),
    Case("deploy local -c modle=lenet", 2, "unknown setting 'modle'; did you mean 'model'?"),
    Case("deploy local --config nowhere.toml", 2, "there is no file nowhere.toml"),
    Case("deploy local --resume nowhere", 2, "nowhere is not a run directory"),
    Case("deploy local --config tiny.toml -c run-dir=done", 2, "done already holds a run"),
    Case(
        "deploy local --config tiny.toml -c run-dir=tiny.toml/below",
        2,
        "cannot be made (not a directory)",
    ),
    Case("deploy local --config tiny.toml -c run-dir=new --logs tiny.toml", 2, "tiny.toml"),
    Case("deploy digests", 2, "Missing argument 'FILE FILE ...'"),
    Case("deploy digests nowhere tiny.toml", 2, "nowhere cannot be read"),
    Case("deploy encryption-key nowhere/key", 2, "nowhere/key: no such file or directory"),
    Case("deploy server", 2, "Missing argument 'DIR'"),
    Case(
        "deploy server nowhere", 2, "nowhere has no ca.crt, server.crt, server.key: make them with `thorns deploy keys nowhere`"
    ),
    Case("deploy server keys --address 127.0.0.1:99999", 2, "'127.0.0.1:99999' is not HOST:PORT"),
    Case("deploy server keys --address 127.0.0.1", 2, "'127.0.0.1' is not HOST:PORT"),
    Case("deploy server keys --address 127.0.0.1:", 2, "is not HOST:PORT"),
    Case("deploy server keys --address 127.0.0.1:http", 2, "is not HOST:PORT"),
    Case("deploy server keys --address 127.0.0.1:-1", 2, "is not HOST:PORT"),
    Case("deploy server keys --address ::1:9092", 2, "is not HOST:PORT"),
    Case("deploy server keys --config tiny.toml", 2, "keys has 2 public keys (*.pub) for 3 clients"),
    Case(
        "deploy server keys --config tiny.toml -c clients=2 -c run-dir=new",
        2,
        "client-1.pub is not a public node key",
        write("keys/client-1.pub"),
    ),
    Case("deploy server keys --config tiny.toml -c clients=2 -c run-dir=new", 2, "server.crt", write("keys/server.crt")),
    Case("deploy server keys --config tiny.toml -c clients=2 -c run-dir=new", 2, "server.key", write("keys/server.key", "")),
    Case("deploy server keys --config tiny.toml -c clients=2 -c run-dir=new", 2, "ca.crt", write("keys/ca.crt", "")),
    Case(
        "deploy server keys --config tiny.toml -c clients=2 -c run-dir=new",
        2,
        "are the same key",
        copy("keys/client-0.pub", "keys/client-1.pub"),
    ),
    Case(
        "deploy server keys --config tiny.toml -c clients=2 -c run-dir=new --address 203.0.113.9:9092",
        2,
        "cannot listen at 203.0.113.9:9092 (cannot assign requested address): choose another",
    ),
    Case("deploy client", 2, "Missing option '--superlink'"),
    Case("deploy client --superlink 127.0.0.1:99999", 2, "is not HOST:PORT"),
    Case("deploy client --superlink 127.0.0.1:9", 2, "Missing option '--node-config'"),
    Case(f"deploy client --superlink 127.0.0.1:9 {NODE} --root-certificates nowhere --key keys/client-0", 2, "does not exist"),
    Case(
        f"deploy client --superlink 127.0.0.1:9 {NODE} --root-certificates keys/ca.crt --key tiny.toml",
        2,
        "tiny.toml is not a node key",
    ),
    Case(f"deploy client --superlink 127.0.0.1:9 {NODE} --root-certificates tiny.toml --key keys/client-0", 2, "tiny.toml"),
    Case(
        f"deploy client --superlink 127.0.0.1:9 {NODE} --root-certificates keys/ca.crt --key keys/client-0.pub",
        2,
        "client-0.pub is not a node key",
    ),
    Case(f"{CLIENT} --node-config ''", 2, "partition-id"),
    Case(f"{CLIENT} --node-config 'partition-id'", 2, "partition-id"),
    Case(f"{CLIENT} --node-config 'partition-id=0'", 2, "num-partitions"),
    Case(f"{CLIENT} --node-config 'partition-id=two num-partitions=2'", 2, "partition-id"),
    Case(f"{CLIENT} --node-config 'partition-id=2 num-partitions=2'", 2, "partition-id"),
    Case(f"{CLIENT} --node-config 'partition-id=-1 num-partitions=2'", 2, "partition-id"),
    Case(f"{CLIENT} --node-config nowhere.toml", 2, "nowhere.toml"),
    Case(f"{CLIENT} --node-config client.toml", 2, "client.toml", write("client.toml", "partition-id = = 0\n")),
    Case(f"{CLIENT} --node-config 'partition-id=0 num-partitions=2 defence=\"prune\"'", 2, "did you mean 'defense'?"),
    Case(f"{CLIENT} --node-config 'partition-id=0 num-partitions=2 defense=\"prun\"'", 2, "did you mean 'prune'?"),
    Case(f"{CLIENT} --node-config 'partition-id=0 num-partitions=2 min-examples=-1'", 2, "min-examples=-1 is not allowed"),
    Case(f"{CLIENT} --node-config 'partition-id=0 num-partitions=2 min-exampels=1'", 2, "did you mean 'min-examples'?"),
    Case(
        f"{CLIENT} --node-config 'partition-id=0 num-partitions=2 secret-seed-file=3'", 2, "secret-seed-file=3 is not allowed"
    ),
    Case(
        f'{CLIENT} --node-config \'partition-id=0 num-partitions=2 defense="prune" demand="prune"\'', 2, "keep one of the two"
    ),
    Case(f"{CLIENT} {NODE} --app nowhere:app", 2, "nowhere:app"),
    Case(f"{CLIENT} {NODE} --app net:answer", 2, "net:answer"),
    Case(f"{CLIENT} {NODE} --state tiny.toml", 2, "tiny.toml"),
    Case(f"{CLIENT} {NODE} --state open", 2, "open", all_of(folder("open"), mode("open", 0o777))),
    Case("deploy keys", 2, "Missing argument 'DIR'"),
    Case("deploy keys keys", 2, "keys/server.key exists: choose another folder, or remove it first"),
    Case("deploy keys tiny.toml", 2, "tiny.toml"),
    Case("deploy keys tiny.toml/below", 2, "tiny.toml/below"),
    Case("deploy keys new --clients 0", 2, "Invalid value for '--clients'"),
    Case("deploy keys new --days 99999999", 2, "days"),
    Case("deploy keys new --host ''", 2, "host"),
    Case("deploy keys new --host größe.example", 2, "größe.example"),
    Case("deploy keys new --host 'a b'", 2, "a b"),
    Case("deploy keys locked/new", 2, "permission denied", all_of(folder("locked"), mode("locked", 0o555)), as_user=True),
)
