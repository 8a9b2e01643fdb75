"""`thorns run` and `thorns data`: images, folders and caches that cannot be used."""

from abuse.case import Case
from abuse.damage import all_of, copy, cut, folder, link, mode, remove, write
from abuse.runs import TINY

CASES = (
    Case("run -c \"dataset=imagefolder(path='nowhere')\"", 2, "nowhere must have a folder of images for each of at least two"),
    Case("run -c dataset=imagefolder", 2, "imagefolder needs path=..."),
    Case("run -c \"dataset=imagefolder(path='pictures', size=0)\"", 2, "imagefolder: size=0 is not allowed"),
    Case("run -c \"dataset=imagefolder(path='pictures', test_share=2)\"", 2, "test_share=2 is not allowed"),
    Case(
        f"{TINY} -c run-dir=new",
        2,
        "pictures/train/apple/03.png cannot be read (it is damaged, or no image): mend or remove it",
        write("pictures/train/apple/03.png"),
    ),
    Case(
        f"{TINY} -c run-dir=new",
        2,
        "pictures/train/apple/03.png cannot be read (it is damaged, or no image): mend or remove it",
        cut("pictures/train/apple/03.png"),
    ),
    Case(f"{TINY} -c run-dir=new", 2, "pictures/train/apple/03.png", write("pictures/train/apple/03.png", b"")),
    Case(f"{TINY} -c run-dir=new", 2, "pictures/train/apple/03.png", folder("pictures/train/apple/03.png")),
    Case(f"{TINY} -c run-dir=new", 2, "pictures/train/apple/03.png", link("pictures/train/apple/03.png", "nowhere.png")),
    Case(f"{TINY} -c run-dir=new", 2, "permission denied", mode("pictures/train/apple/03.png", 0), as_user=True),
    Case(f"{TINY} -c run-dir=new", 2, "pictures has a train folder but neither test, val nor valid", remove("pictures/test")),
    Case(
        f"{TINY} -c run-dir=new",
        2,
        "pictures/train must have a folder of images",
        remove("pictures/train/apple", "pictures/train/berry"),
    ),
    Case(
        f"{TINY} -c run-dir=new",
        2,
        "holds no images of the classes",
        remove("pictures/test/apple", "pictures/test/berry", "pictures/test/cherry"),
    ),
    Case(f"{TINY} -c run-dir=new -c clients=1000", 2, "clients=1000 is more than the 24 training examples"),
    Case(f"{TINY} -c run-dir=new -c batch-size=999999999", 2, "batch-size=999999999 is more than the 24 training examples"),
    Case(f"{TINY} -c run-dir=new -c 'partition=dirichlet(alpha=1e-9)' -c clients=24", 2, "partition"),
    Case(f"{TINY} -c run-dir=new -c 'model=convnet(width=99999999)'", 2, "convnet"),
    Case(f"{TINY} -c run-dir=new", 2, "cache", all_of(remove("cache"), write("cache", "a file"))),
    Case(f"{TINY} -c run-dir=new", 2, "cache", mode("cache", 0o555), as_user=True),
    Case("data get minst", 2, "unknown data set 'minst'; did you mean 'mnist'?"),
    Case("data get", 2, "Missing argument"),
    Case("data get mnist", 2, "mnist.safetensors is damaged", write("cache/mnist.safetensors")),
    Case(
        "data get cifar10",
        2,
        "Put its files into",
        env=(
            ("PATH", ""),
            ("PIP_INDEX_URL", "http://127.0.0.1:1"),
            ("https_proxy", "http://127.0.0.1:1"),
            ("http_proxy", "http://127.0.0.1:1"),
        ),
    ),
    Case("data path minst", 2, "did you mean 'mnist'?"),
    Case("data path mnist", 0, "not there yet; files put into"),
    Case("data get \"medmnist(kind='heart')\"", 2, "heart"),
    Case("data get \"imagefolder(path='pictures/train/apple')\"", 2, "must have a folder of images for each of at least two"),
    Case("data list extra", 2, "unexpected extra argument"),
    Case("data lst", 2, "No such command 'lst'"),
    Case("run -c dataset=mnist -c run-dir=new", 2, "mnist.safetensors is damaged", write("cache/mnist.safetensors")),
    Case("run -c dataset=mnist -c run-dir=new", 2, "mnist.safetensors", folder("cache/mnist.safetensors")),
    Case(
        "run -c dataset=mnist -c run-dir=new",
        2,
        "mnist.safetensors does not hold a data set",
        copy("truth.safetensors", "cache/mnist.safetensors"),
    ),
)
