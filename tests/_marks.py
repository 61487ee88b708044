"""Texts that name a person, a machine or a place, each with the parts that must be removed."""

from typing import NamedTuple

HOST, USER = "gpu17.acme.example", "amelia"
UUID = "GPU-3f1d2a4b-5c6d-7e8f-9a0b-1c2d3e4f5a6b"
PCI = "00000000:9B:00.0"
SERIAL = "1652922013123"
OTHER_HOST = "bravo9"  # the host in the manifest of a second run


class NamedText(NamedTuple):
    """A kind of name, a text with such a name, and the parts that must be removed."""

    kind: str
    text: str
    secrets: tuple[str, ...]


def _mark(kind, text, *secrets):
    return NamedText(kind, text, secrets)


_KEY = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmU"
MARKS = (
    _mark("host", f"the worker on {HOST} died", "gpu17", "acme"),
    _mark("host in capitals", "GPU17: out of memory", "gpu17"),
    _mark("coloured host", "\x1b[31mgpu17\x1b[0m: out of memory", "gpu17"),
    _mark("fully qualified host", "no answer from node7.cluster.local", "node7"),
    _mark("cloud host", "no answer from ip-10-17-3-250.ec2.internal", "17-3-250"),
    _mark("host and port", "cannot connect to zebra:8080", "zebra"),
    _mark("qualified host and port", "tcp://zebra.rack4:29500 refused, zebra.rack4:29500 too", "zebra", "rack4"),
    _mark("host of a log", "zebra-17:1234:1300 [0] NCCL INFO using eth0:10.1.2.3<0>", "zebra", "10.1.2.3"),
    _mark("host with its name", "hostname: zebra, NodeList=zebra[17-18]", "zebra"),
    _mark("user", "the program of amelia was killed", "amelia"),
    _mark("home path", "cannot open /home/amelia/hush.bin", "amelia", "hush"),
    _mark("another home", "cannot open /home/zoe/x: EIO", "zoe"),
    _mark("tilde", "wrote ~zoe/runs and ~/zebra/runs", "zoe", "zebra"),
    _mark("path", "read /data/zebra/weights.safetensors: line 3", "zebra", "weights.safe"),
    _mark("quoted path with spaces", "No such file: '/mnt/zebra disk/model one.bin'", "zebra", "disk/model", "one.bin"),
    _mark("path with spaces", "cannot open /mnt/zebra disk/model one.bin: EIO", "zebra", "disk/model", "one.bin"),
    _mark("climbing path", "see ../../zebra/dump.bin and ../x/zebra", "zebra", "dump.bin"),
    _mark("relative path", "see zebra/dumps/a.bin", "zebra", "dumps/a"),
    _mark("relative path below a known name", "see amelia/hush.bin and gpu17/hush/x", "amelia", "hush"),
    _mark("path in a list", "PATH=/usr/bin:/data/zebra/bin:/opt/zebra", "zebra"),
    _mark("path behind a sign", "--out=/data/zebra.jsonl -I/data/zebra/include", "zebra"),
    _mark("Windows path", "C:\\Users\\zoe\\hush\\a.jsonl is open", "zoe", "hush"),
    _mark("Windows share", "\\\\filer\\zebra\\runs is offline", "filer", "zebra"),
    _mark("process's folder", "/proc/4711/cwd/zebra/x.py is gone", "zebra"),
    _mark("device by id", "/dev/disk/by-id/nvme-SAMSUNG_S4EVNX0R is full", "S4EVNX0R"),
    _mark("mount by label", "/dev/mapper/zebra-root is full, /media/zoe/STICK too", "zebra", "zoe"),
    _mark("uuid", f"device {UUID} fell off the bus", "3f1d2a4b", "1c2d3e4f5a6b"),
    _mark("uuid without prefix", f"no device {UUID.removeprefix('GPU-')}", "3f1d2a4b", "1c2d3e4f5a6b"),
    _mark("uuid of a MIG slice", "MIG-aa1d2a4b-5c6d-7e8f-9a0b-1c2d3e4f5a6b is gone", "aa1d2a4b"),
    _mark("pci of eight digits", f"Xid 79 on {PCI}", "9B:00"),
    _mark("pci", "0000:9b:00.0 and 9b:00.0 fell off the bus", "9b:00"),
    _mark("pci without function", "Xid (PCI:0000:9b:00): 79, and bus 00000000:9b:00", "9b:00"),
    _mark("serial", f"serial number: {SERIAL}, Serial Number {SERIAL}", SERIAL),
    _mark("another serial", "Serial No. : 132-2ABX77 and serial=ZZ9ABX78", "2ABX77", "ZZ9ABX78"),
    _mark("board id", "board_id=0x9b00 and Board ID: 0x9b01 of board_id 0x9b02", "0x9b0"),
    _mark("mac", "link 0c:42:a1:5f:77:e0 is down", "a1:5f"),
    _mark("guid", "port 0c42:a103:005f:77e0 is down", "a103:005f"),
    _mark("ip4", "no route to 10.17.3.250 or 10.17.3.251:4217", "10.17.3"),
    _mark("network", "no route to 10.17.0.0/16 by 10.17.3.1/24", "10.17"),
    _mark("ip6", "no route to [fe80::1c2d:3eff:fe4f:5a6b] or 2001:db8::7", "1c2d:3eff", "2001:db8"),
    _mark("url", "GET https://zebra.example:8443/simple?token=hunter2 failed.", "zebra", "hunter2"),
    _mark("url with a user", "GET http://zed:hunter2@proxy:3128/ failed", "zed", "hunter2", "proxy:3128"),
    _mark("mail", "ask zed@zebra.example, zed+x@zebra", "zed", "zebra"),
    _mark("git address", "cloning git@git.zebra.net:zed/tool.git", "zebra", "zed/tool"),
    _mark("ssh", "rsync zed@zebra:/srv/x", "zed", "zebra", "/srv/x"),
    _mark("variable", "HF_TOKEN=hunter2 AWS_SECRET=hunter2 gpubench run", "hunter2"),
    _mark("quoted variable", 'MY_NAME="hunter zwei" gpubench', "hunter", "zwei"),
    _mark("variable in small letters", "http_proxy=proxy.zebra:3128 no_proxy=zebra,lan7", "proxy.z", "zebra"),
    _mark("code that sets a variable", "os.environ['HF_TOKEN'] = 'hunter2'", "hunter2"),
    _mark("dict", "env {'TOKEN': 'hunter2', 'LOGNAME': 'zed'}", "hunter2", "zed"),
    _mark("JSON", '{"api_key": "hunter2", "user": "zed", "HOSTNAME": "zebra"}', "hunter2", "zed", "zebra"),
    _mark("option", "gpubench --password hunter2 --api-token=hunter2 --user zed", "hunter2", "zed"),
    _mark("header", "Authorization: Bearer hunter2hunter2, X-Api-Key: hunter2", "hunter2"),
    _mark("cookie", "Cookie: session=hunter2; id=hunter2", "hunter2"),
    _mark("password", "password: hunter2, passwd = hunter2", "hunter2"),
    _mark("AWS key", "AKIAIOSFODNN7EXAMPLE and wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "AKIA", "wJalr"),
    _mark(
        "GitHub token",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a and github_pat_11ABCDEFG0abc456",
        "16C7e42F29",
        "11ABCDEFG",
    ),
    _mark("other tokens", "hf_abcdefghijklmnopqrstuvwxyz and glpat-abcdefghij1234567890", "hf_abc", "abcdefghij1"),
    _mark("JSON web token", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmN", "eyJh", "dozj"),
    _mark("ssh key", f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA{_KEY} zed@zebra", "AAAAC3Nz", "lZDI1NTE5", "zed", "zebra"),
    _mark("fingerprint of a key", "SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDT0PFwl1Vqo0Sq7Eo", "uNiV"),
    _mark(
        "private key", f"-----BEGIN OPENSSH PRIVATE KEY-----\n{_KEY}\n{_KEY}\n-----END OPENSSH PRIVATE KEY-----", _KEY
    ),
    _mark("addresses of digits", "00:11:22:33:44:55, 0000:03:00.1 and fd12::17 are gone", "11:22", "03:00", "fd12::17"),
    _mark("host with a number", "no answer from worker-17 and from gpu-worker-19b", "worker-17", "worker-19b"),
    _mark("container", f"container {'4f5e6d7c8b9a' * 5}4f5e of 4f5e6d7c8b9a", "4f5e6d7c8b9a"),
)
