"""Command lines that are refused, and options in errors of Python and the command line."""

import pickle
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import page4d
from page4d.errors import in_python
from page4d.io.atomic import LOCK_NAME
from page4d.io.json_records import config_to_json
from page4d.options import in_options
from tests.cli.clips import write_scene
from tests.cli.test_pretrain import ENCODER
from tests.exporters.capture import make_capture
from tests.fuzzing import bounded

ROOM = Path(__file__).parents[2] / "samples" / "room"


VALUES = {"room": ROOM, "huge": 2**63, "digits": "9" * 5000, "long": "x" * 5000, "words": "x " * 500}
COMMANDS = {
    "run": "reconstruct {scene} --out {new} --untrained --preset mv-tiny --dry-run",
    "train": "train --out {new} --preset tiny --until-samples 1",
    "pretrain": "pretrain {scene} --out {new} --steps 1",
    "export": "export {result} --to {new} --format",
    "pictured": "export {result} --to {new} --scene {scene} --format",
}

REFUSED = """
2 reconstrut -> No such command 'reconstrut' ... did you mean reconstruct, report? 'page4d --help' lists
2 --bogus -> No such option: --bogus ... 'page4d --help' lists the commands
2 reconstruct -> Missing argument 'SCENE'
2 reconstruct a --ouput x -> No such option: --ouput ... did you mean --out
2 reconstruct a --out -> Option '--out' requires an argument
2 reconstruct a --out x --json=3 -> Option '--json' does not take a value
2 reconstruct a --out x --size abc -> Invalid value for '--size': 'abc' should be a valid integer
2 reconstruct a --out x --overlap -1 -> Invalid value for '--overlap': '-1' should be greater than or
2 reconstruct a --out x --precision fp23 -> Invalid value for '--precision': 'fp23' is ... did you mean fp32?
2 reconstruct a --out x --register poeple -> Invalid value for '--register' ... did you mean people? 'page4d
2 reconstruct a --out x --frames 1-2 -> Invalid value for '--frames': '1-2' is not of the form A:B
2 reconstruct a --out x --frames 0:9:3 -> Invalid value for '--frames': '0:9:3' is not of the form A:B; --stride
2 reconstruct a --out x --frames {long} -> Invalid value for '--frames'
2 {run} --chunk {digits} -> Invalid value for '--chunk': '999 ... is neither auto nor a positive number
2 {run} --chunk ٤ -> Invalid value for '--chunk': '٤' is neither auto nor a positive number
2 {run} --memory {digits}GB -> --memory 999 ... is not an amount of memory
2 {run} --memory 1111111111111111MB -> --memory 1111111111111111MB is not an amount of memory
2 {run} --memory ٤GB -> --memory ٤GB is not an amount of memory
2 {run} --depth-size {digits} -> Invalid value for '--depth-size': '999 ... auto, network, video nor 8 to 65536 px
2 {run} --size {huge} -> Invalid value for '--size': '9223372036854775808' should be less than or equal to 65536
2 {run} --calib-resize scale -> --calib-resize without --calibration
2 {run} --scale-from cam01-cam02=1e-300m -> --scale-from: a distance of 1e-300 m
2 {run} --scale-from cam01-cam02=1e300mm -> --scale-from: a distance of 1e300 mm
2 {run} --device {digits} -> no device is called '999
2 {run} --again cam01 --again cam02 -> --again is given more than once
2 reconstruct {scene} --out {new} --untrained --distributed slurm -> --distributed 'slurm' is not a Ray ... ray://HOST
2 reconstruct one --out {new} --jobs 2 -> --jobs 2 with
2 reconstruct one two --out {new} --jobs 2 --distributed ray -> --jobs 2 with
2 reconstruct one two --out {new} --motion --depth {truth} -> --depth of one scene with 2 scenes
2 reconstruct one two --out {new} --motion --masks {truth} -> --masks of one scene with 2 scenes
2 reconstruct one two --out {new} --motion --tracks2d {truth} -> --tracks2d of one scene with 2 scenes
2 reconstruct {scene} --out {new} --untrained --preset {digits} -> no network is called '999
2 inspect-scene {room} --views Cam1,cam02 -> --views: no view is called 'Cam1' ... did you mean cam01?
2 inspect-scene {room} --sync adio -> sync file 'adio' does not exist ... did you mean audio? give a file
2 inspect-scene {room}/../rom -> scene folder ' ... did you mean room? give the folder
2 inspect-scene {room} --masks {room}/thruth -> masks folder ' ... did you mean truth? give a folder
2 inspect-scene {room} --masks {file} -> masks folder ' ... is a file
2 inspect-scene {long} -> 'xxx
2 inspect-scene {scene} --views {digits} -> --views: no view is called '999
2 inspect-scene {scene} --views ٤ -> --views: no view is called '٤'
2 inspect-scene {scene} --views {long} -> --views: no view is called 'xxx
2 inspect-scene {scene} --views cam01 --views=cam02 -> --views is given more than once
2 inspect-scene {scene} --frames 0:{digits} -> Invalid value for '--frames': '0:999 ... is not of the form A:B
2 inspect-scene {scene} --frames 1_0: -> Invalid value for '--frames': '1_0:' is not of the form A:B
2 inspect-scene {scene} --fps 1e300 -> Invalid value for '--fps': '1e300' should be less than or equal to
2 inspect-scene {scene} --image-fps 1e300 -> Invalid value for '--image-fps': '1e300' should be less
2 inspect-scene {scene} --masks {long} -> 'xxx ... is no usable path: File name too long
2 inspect-scene {scene} --sync {long} -> xxx ... file name too long
2 weights -> Missing command
2 weights gett -> No such command 'gett' ... did you mean get?
2 weights show da3_bsae -> no checkpoint is called 'da3_bsae' ... did you mean da3-base? choose from
2 doctor extra -> Got unexpected extra argument ... 'page4d doctor --help' lists the options
2 doctor {words} -> Got unexpected extra argument
2 inspect-shapes --{long} -> No such option: --xxx
2 inspect-shapes --model MV-Tinny -> no network is called 'MV-Tinny' ... did you mean mv-tiny? choose from
2 inspect-shapes --model vggt --weights x -> --model and --weights both name a network
4 inspect-shapes --weights x.safetensors -> weights 'x.safetensors' do not exist
2 inspect-shapes --views 100000000 -> Invalid value for '--views': '100000000' should be less than or equal to 65536
2 inspect-shapes --views 65536 --times 65536 -> 4,294,967,296 images ... at most 1,048,576
2 inspect-shapes --batch {huge} -> Invalid value for '--batch'
2 inspect-shapes --size {digits} -> Invalid value for '--size': '999 ... with sides of 1 to 16384 px
2 inspect-shapes --size 16385 -> Invalid value for '--size': '16385' ... with sides of 1 to 16384 px
2 inspect-shapes --size 16384x0 -> Invalid value for '--size': '16384x0' is not of the form WxH or N with sides
2 inspect-shapes --size x -> Invalid value for '--size': 'x' is not of the form WxH or N with sides
2 inspect-shapes --size 28x -> Invalid value for '--size': '28x' is not of the form WxH or N with sides
2 inspect-shapes --size 0x28 -> Invalid value for '--size': '0x28' is not of the form WxH or N with sides
2 inspect-shapes --size -1 -> Invalid value for '--size': '-1' is not of the form WxH or N with sides
2 inspect-shapes --size 30 -> images of 30 x 30 px do not divide into patches of 14 px
2 inspect-shapes --model mv-demo --size 1920x1081 -> images of 1920 x 1081 px do not divide into patches of 8 px
2 inspect-shapes --model mv-demo --size 16000 -> matching of 4,000,000 patches in ... fewer or smaller images
2 inspect-shapes --model swin-t --size 15 -> images of 15 x 15 px do not divide
2 inspect-shapes --model navit --size 2048 -> an image has 128 x 128 patches, the position tables cover 32 x 32
2 inspect-shapes --model mv-navit --size 2048 -> an image has 128 x 128 patches, the position tables cover 32 x 32
2 inspect-shapes --model swin-t --times 3 -> --times 3, but swin-t is an encoder of single ... leave --times out
2 inspect-shapes --model swin-t --views 3 -> --views 3, but swin-t is an encoder of single ... leave --views out
2 inspect-shapes --model swin-t --weights 3 -> --weights 3, but swin-t is an encoder of ... leave --weights out
2 benchmark --views 1,1000000000 -> Invalid value for '--views': '1,10000 ... a list of numbers from 1 to 100,000
2 benchmark --times {digits} -> Invalid value for '--times': '999 ... from 1 to 100,000
2 benchmark --times 1,x -> Invalid value for '--times': '1,x' is not a list of numbers from 1 to 100,000
2 benchmark --size {digits}x8 -> Invalid value for '--size': '999 ... is not of the form WxH
2 benchmark --preset mv-tiny --size 30x28 -> images of 30x28 px do not divide into patches of 14 px
2 evaluate {result} {room} --align best -> Invalid value for '--align': 'best' is not one of 'scale'
2 evaluate {result} {room} --max-depth -1 -> Invalid value for '--max-depth': '-1' should be greater than 0
2 evaluate {result} {room} --threshold 0 -> Invalid value for '--threshold': '0' should be greater than 0
3 evaluate {result} nowhere -> truth 'nowhere' does not exist
3 evaluate {result} {result} -> '{result}' is the output of a run, not ground truth
5 evaluate {result} {room} --plots {file} -> cannot write to '{file}': it is a file
2 view {result} --overwrite -> --overwrite without --html
2 view {result} --html x.html --port 81 -> --port and --html contradict each other
2 view {result} --html x.html --no-browser -> --no-browser and --html contradict each other
2 view {result} --views cam9 -> --views: no view is called 'cam9'
2 view {result} --views cam01,,cam02 -> Invalid value for '--views': give names separated by commas
2 view {result} --instants 9 -> --instants: no instant 9
2 view {result} --instants 1:1 -> --instants leaves no instant
2 view {result} --instants 1:2:0 -> Invalid value for '--instants': '1:2:0' is not of the form
2 view {result} --port 65536 -> Invalid value for '--port': '65536' should be less than or equal to 65535
2 view {result} --max-points -1 -> Invalid value for '--max-points': '-1' should be greater than or equal to 0
2 view {result} --html {result}/run.json --overwrite -> '{result}/run.json' is in the folder of the run
3 view {truth} -> '{truth}' holds no result: run.json is missing
3 view {result} --scene {truth} -> no videos in '{truth}'
3 validate treadmill {truth} -> '{truth}' is not the rig treadmill: it has no Calib.qca.txt
2 validate ofice -> no public rig is called 'ofice' ... did you mean office?
3 report {truth} -> '{truth}' holds no result: run.json is missing
5 report {result} --html {truth} -> cannot write to '{truth}': a folder is in the way
2 export -> missing argument 'OUT'
2 export OUT -> missing option '--format'
2 export OUT --format glb -> missing option '--to'
3 export OUT --format glb --to DIR -> 'OUT' is not a folder
2 {export} colamp -> no format 'colamp' ... did you mean colmap? 'page4d export --list'
2 {export} glb,xyz -> no format 'xyz' ... 'page4d export --list'
2 {export} nuke -> no format 'nuke' ... nuke reads usd, exr, chan; 'page4d export --list'
2 {export} alembic -> no format 'alembic': Alembic has no writer for Python ... export usd
2 {export} fbx -> no format 'fbx': FBX has no free writer ... export usd
2 {export} ply -> no format 'ply': it is that of the run's clouds ... use the run's points/*.ply
2 {export} splatting -> no format 'splatting' ... did you mean splat? 'page4d export --list'
2 {export} glb, -> the name of a format is empty ... --list
2 {export} glb --text -> glb takes no --text ... these formats take it: colmap
2 {export} glb,chan --split -> glb, chan takes no --split ... these formats take it: usd
2 {export} usd --animated -> usd takes no --animated ... these formats take it: glb
2 {export} splat --image-size 64 -> splat takes no --image-size ... nerfstudio
2 {export} chan --max-points 5 -> chan takes no --max-points ... splat
2 {export} glb --no-images -> glb takes no --no-images ... colmap
2 {export} glb --views cam1 -> --views: no view is called 'cam1' ... cam01, cam02, cam03, cam04
2 {export} glb --views cam01, -> Invalid value for '--views' ... --help
2 {export} glb --instants 4 -> --instants: no instant 4 ... instants 0 to 3
2 {export} glb --instants 0:9 -> --instants: no instant 8 ... instants 0 to 3
2 {export} glb --instants -5: -> --instants: no instant -5 ... instants 0 to 3
2 {export} glb --instants 3:2 -> --instants leaves no instant ... instants 0 to 3
2 {export} glb --instants 0:4:0 -> Invalid value for '--instants': '0:4:0' is not of the form A:B or A:B:S ... --help
2 {export} glb --instants a -> Invalid value for '--instants': 'a' is not of the form A:B or A:B:S ... --help
2 {export} glb --max-points -1 -> Invalid value for '--max-points': '-1' should be greater than or equal to 0
2 {export} glb --max-points 2147483648 -> Invalid value for '--max-points': '2147483648' should be less than
2 {export} glb --voxel inf -> Invalid value for '--voxel': 'inf' should be less than
2 {export} glb --min-confidence 1.5 -> Invalid value for '--min-confidence': '1.5' should be less than or equal to 1
2 {export} glb --scale 0 -> Invalid value for '--scale': '0.0' should be greater than or equal to
2 {export} glb --scale big -> Invalid value for '--scale': 'big' is neither auto nor a number
2 {export} glb --up w -> Invalid value for '--up' ... --help
2 {export} glb,nerfstudio -> nerfstudio needs the pictures ... give --scene FOLDER with cam01/, cam02/, cam03/,
3 {export} freetimegs -> freetimegs needs velocities, and this run has none ... motion
2 {pictured} nerfstudio --hold-out x -> --hold-out: no view is called 'x' ... cam01, cam02
2 {pictured} nerfstudio --hold-out cam02 --views cam01 -> --hold-out cam02 is not among the exported ... add it
2 {pictured} nerfstudio --hold-out cam01 --views cam01 -> --hold-out leaves no view for training ... hold out fewer
2 {pictured} colmap,nerfstudio --hold-out cam01 -> colmap would contain the views of --hold-out ... --views
2 {pictured} colmap --image-size 4 -> Invalid value for '--image-size': '4' should be greater than or equal to 8
2 {pictured} colmap --image-size 20000 -> Invalid value for '--image-size': '20000' should be less than or equal
2 {pictured} colmap --pinhole-focal -5 -> Invalid value for '--pinhole-focal': '-5' should be greater than 0
2 {pictured} colmap --pinhole-focal 50 -> --pinhole-focal without --pinhole common ... give --pinhole common
2 {pictured} colmap --pinhole keep --pinhole-focal 50 -> --pinhole-focal with --pinhole keep ... --pinhole common
2 {pictured} spacetime --pinhole keep -> spacetime takes no --pinhole
3 {pictured} spacetime --views cam01 -> spacetime needs at least 2 views
3 {pictured} spacetime --hold-out cam01 --views cam01,cam02 -> spacetime needs at least 3 views ... export more views
2 {pictured} glb,spacetime --hold-out cam01,cam02 -> spacetime holds out one view, not 2 ... give one --hold-out
2 {pictured} 4dgaussians --image-format png -> 4dgaussians takes no --image-format
2 {pictured} 4dgaussians --hold-out cam01 -> 4dgaussians takes no --hold-out
3 {pictured} 4dgaussians --views cam01 -> 4dgaussians needs at least 2 views
3 {pictured} 4dgaussians --instants 0 -> 4dgaussians needs at least 2 instants ... export more instants
2 {pictured} 4dgaussians-dynerf --hold-out cam01,cam02 -> 4dgaussians-dynerf holds out one view ... give one
3 {pictured} 4dgaussians-dynerf --views cam01,cam02 -> 4dgaussians-dynerf needs at least 3 views; this export has 2
2 synthesize --out {new} --frames 1000000000 -> Invalid value for '--frames': '1000000000' should be less than
2 synthesize --out {new} --views 65 -> Invalid value for '--views': '65' should be less than or equal to 64
2 synthesize --out {new} --size 100000x100000 -> synthetic capture: image_size.0 is 100000 ... than or equal to 8192
2 synthesize --out {new} --fps nan -> Invalid value for '--fps': 'nan' should be greater than or equal to 0.1
2 synthesize --out {new} --fps inf -> synthetic capture: fps is inf
2 synthesize --out {new} --spacing nan -> Invalid value for '--spacing': 'nan' should be less than or equal to 180
2 synthesize --out {new} --readout 1e12 -> synthetic capture: readout_s is 1000000000.0
2 synthesize --out {new} --seed {digits} -> Invalid value for '--seed': Unable to parse input string as an integer
2 train -> Missing option '--out' ... 'page4d train --help' lists the options
2 train --out {new} --preset dmeo -> no training preset is called 'dmeo' ... did you mean demo? choose from
2 train --out {new} --preset huge -> no training preset is called 'huge'
2 train --out {new} --preset tiny -> a run without an end
2 train --out {new} --preset tiny --until-samples 0 -> a run of 0 samples
2 train --out {new} --until-samples {huge} -> a run of 9.22337e+18 samples ... 9,007,199,254,740,992
2 train --out {new} --until-seconds nan -> a run of nan seconds
2 train --out {new} --until-seconds 1e300 -> a run of 1e+300 seconds ... up to 1e+09
2 train --out {new} --preset tiny --config c.json -> --preset and --config contradict each other
3 train --out {new} --until-samples 1 --config missing.json -> 'missing.json' cannot be read: it does not exist
3 train --out {new} --resume -> there is no checkpoint ... give the folder of a run, or leave out --resume
2 train --out {new} --resume --seed 1 -> a run that is continued keeps its configuration
2 train --out {new} --resume --preset tiny -> a run that is continued keeps its configuration
2 {train} --model huge -> no network is called 'huge'
3 {train} --model missing.json -> 'missing.json' cannot be read: it does not exist
3 {train} --data missing -> truth 'missing' does not exist
4 {train} --weights missing.safetensors -> weights 'missing.safetensors' do not exist
2 {train} --precision fp8 -> Invalid value for '--precision': 'fp8' is not one of
2 {train} --precision fp16 -> training in fp16
2 {train} --device tpu -> no device is called 'tpu'
2 {train} --learning-rate nan -> optimizer: learning_rate is nan
2 {train} --learning-rate inf -> optimizer: learning_rate is inf
2 {train} --learning-rate 1e30 -> optimizer: learning_rate is 1e+30 ... less than or equal to 1
2 {train} --learning-rate -1 -> optimizer: learning_rate is -1.0 ... greater than 0
2 {train} --decay-fraction nan -> training: decay_fraction is nan
2 {train} --workers 1000000000 -> Invalid value for '--workers': '1000000000' should be less than or equal to 1024
2 {train} --workers 1024 -> 1024 workers on a machine with ... CPU cores
2 {train} --threads 1000000000 -> Invalid value for '--threads': '1000000000' should be less than or equal to 1024
2 {train} --seed {huge} -> training: seed is 9223372036854775808
2 pretrain x --out y --encoder vit-m18 -> no encoder is called 'vit-m18' ... did you mean vit-s16? choose from
2 pretrain {scene} --out {new} -> a run without an end
2 pretrain {scene} --out {new} --steps {huge} -> a run of 9.22337e+18 steps ... 9,007,199,254,740,992
2 pretrain {scene} --out {new} --until-seconds 0 -> a run of 0 seconds ... give --until-seconds above 0
2 pretrain {scene} --out {new} --method mae --config c.json -> --config and --method contradict each other
2 pretrain --out {new} --steps 1 -> a new run without a scene
3 pretrain --out {new} --resume -> there is no checkpoint
3 pretrain {truth} --out {new} --steps 1 -> no videos in
2 pretrain {room}/nowhere --out {new} --steps 1 -> scene folder ' ... does not exist
2 pretrain {file} --out {new} --steps 1 -> '{file}' is a file ... give the folder
3 pretrain {short} --out {new} --steps 1 -> 3 frames in 1 view: too few
2 {pretrain} --until-seconds inf -> a run of inf seconds
2 {pretrain} --encoder swin-t -> mae trains a ViT, and the encoder is a swin
2 {pretrain} --encoder vit-huge -> no encoder is called 'vit-huge'
3 {pretrain} --encoder missing.json -> 'missing.json' cannot be read: it does not exist
2 {pretrain} --method dino --encoder {mean} -> dino ... pools by 'mean'
2 {pretrain} --batch 1000000000 -> pretraining: batch is 1000000000 ... 65536
2 {pretrain} --size 1000000000 -> crops: size is 1000000000 ... 16384
2 {pretrain} --size 30 -> crops of 30 px for patches of 8 x 8 px
2 {pretrain} --precision fp16 -> training in fp16
2 {pretrain} --device tpu -> no device is called 'tpu'
2 {pretrain} --learning-rate nan -> optimizer: learning_rate is nan
"""
"""Exit code, line, and parts of the message and its hint in their order; the message begins with the first."""


@pytest.mark.parametrize("row", REFUSED.strip().splitlines(), ids=lambda row: row.partition(" -> ")[0][2:])
def test_a_mistake_has_two_short_lines_and_its_code(row: str, places, cli, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    known = VALUES | places | {"new": tmp_path / "new"}
    known |= {name: command.format(**known) for name, command in COMMANDS.items()}
    line, text = row[2:].format(**known).split(" -> ")
    with bounded(seconds=10):
        ended = cli(*line.split())
    assert (ended.code, ended.out) == (int(row[0]), "")
    first, second = ended.err.splitlines()
    assert second.startswith("hint:  ")
    begin, *others = text.split(" ... ")
    assert first.startswith(f"error: {begin}")
    assert re.search(".*".join(map(re.escape, ("", *others))), f"{first[7:].removeprefix(begin)}; {second[7:]}")
    assert max(len(first), len(second)) < 500
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {LOCK_NAME}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A scene, its run, a damaged ground truth, a folder for outputs, and what `pretrain` cannot use."""
    folder = tmp_path_factory.mktemp("mistakes")
    capture = make_capture(folder, size=(30, 40))
    truth, state = folder / "truth", capture.folder / "state"
    truth.mkdir()
    state.mkdir(exist_ok=True)
    (state / "run.json").write_text("{}")
    shutil.copy(capture.folder / "cameras.json", truth)
    (truth / "capture.json").write_text("{}")
    file, mean = folder / "file", folder / "mean.json"
    file.write_text("")
    mean.write_text(config_to_json(replace(ENCODER, pooling="mean")))
    short = write_scene(folder / "short", names=("a",), frames=3)
    found = {"scene": capture.scene, "result": capture.folder, "truth": truth, "new": folder / "new"}
    return found | {"file": file, "mean": mean, "short": short}


MISTAKES = """\
mesh_voxel: reconstruct(scene, out=new, mesh_voxel=0.1)
    reconstruct {scene} --out {new} --mesh-voxel 0.1
mesh_voxel=0.1 without mesh; pass mesh=True too
--mesh-voxel 0.1 without --mesh; pass --mesh too

None: reconstruct(scene, out=result)
    reconstruct {scene} --out {result}
'{result}' already holds a result; use existing='resume', existing='overwrite' or another folder
'{result}' already holds a result; use --resume, --overwrite or another folder

calibration_unit: open_scene(scene, calibration_unit='mm')
    inspect-scene {scene} --calibration-unit mm
calibration_unit without calibration; pass the calibration file too
--calibration-unit without --calibration; pass the calibration file too

views: open_scene(scene, views=9)
    inspect-scene {scene} --views 9
views=9, but '{scene}' has 4 videos: cam01, cam02, cam03, cam04; pass views=4
--views 9, but '{scene}' has 4 videos: cam01, cam02, cam03, cam04; pass --views 4

focal: register(scene, focal='cam9=50')
    register {scene} --out {new}.json --focal cam9=50
focal='cam9=50': no view is called 'cam9'; did you mean cam04? choose from cam01, cam02, cam03, cam04
--focal cam9=50: no view is called 'cam9'; did you mean cam04? choose from cam01, cam02, cam03, cam04

None: evaluate(result, truth)
    evaluate {result} {truth}
'{truth}/capture.json' has no options.fps; restore it, or remove it and pass fps
'{truth}/capture.json' has no options.fps; restore it, or remove it and pass --fps

None: export(result, 'colmap', new)
    export {result} --format colmap --to {new}
colmap needs the pictures; give scene=FOLDER with cam01/, cam02/, cam03/, ... (4 in all), or images=False
colmap needs the pictures; give --scene FOLDER with cam01/, cam02/, cam03/, ... (4 in all), or --no-images

text: export(result, 'npz', new, text=True)
    export {result} --format npz --to {new} --text
npz takes no text; leave it out; these formats take it: colmap
npz takes no --text; leave it out; these formats take it: colmap
"""


@pytest.mark.parametrize("mistake", MISTAKES.split("\n\n"), ids=lambda text: text.split("(")[0])
def test_python_and_the_command_line_name_options_as_they_take_them(mistake, places, cli) -> None:
    call, line, python, command = mistake.format(**places).splitlines()
    option, call = call.split(": ")
    with pytest.raises(page4d.Page4DError) as caught:
        eval(f"page4d.{call}", {"page4d": page4d, **places})
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (f"{error}; {error.hint}", str(error.option), error.args) == (python, option, (error.message,))
    assert "; ".join(part[7:] for part in cli(*line.split()).err.splitlines()[-2:]) == command


@pytest.mark.parametrize(
    ("marked", "keyword", "words"),
    [
        ("⟨instants=0:300⟩ ⟨frames=2:4⟩", "instants=range(0, 300) frames=(2, 4)", "--instants 0:300 --frames 2:4"),
        ("⟨views=a,b⟩ ⟨hold_out=a⟩", "views=['a', 'b'] hold_out=['a']", "--views a,b --hold-out a"),
        ("⟨refine=False⟩ ⟨motion=True⟩", "refine=False motion=True", "--no-refine --motion"),
        ("⟨weights=FILE⟩ ⟨sync=none⟩", "weights=FILE sync='none'", "--weights FILE --sync none"),
    ],
)
def test_values_of_options_in_messages(marked, keyword, words) -> None:
    assert (in_python(marked), in_options(marked)) == (keyword, words)
    assert (in_python(keyword), in_options(words)) == (keyword, words)


def test_a_control_character_in_an_option_is_escaped(cli) -> None:
    assert "\x1b" not in cli("reconstruct", "--\x1b[31mred").err


def test_help_without_arguments_has_code_2_as_nothing_was_done(cli) -> None:
    ended = cli()
    assert (ended.code, ended.err) == (2, "")
    assert ended.out == cli("--help").out


def test_a_variable_that_is_no_width_changes_nothing(monkeypatch, cli) -> None:
    def screens() -> list[object]:
        return [cli("export", "--list"), cli("doctor", "extra"), cli("doctor", "--help")]

    monkeypatch.delenv("COLUMNS", raising=False)
    expected = screens()
    assert "nerfstudio" in expected[0].out
    for given in ("", "0", "-5", "wide", "9" * 5000):
        monkeypatch.setenv("COLUMNS", given)
        assert screens() == expected, given
