import subprocess, sys, pytest, os, multiprocessing
pytest.skip("module", allow_module_level=True) if os.environ.get("MODSKIP") else None
def test_a(): pass
@pytest.mark.skip(reason="because")
def test_b(): pass
def test_c(): pytest.skip("in body")
@pytest.mark.xfail(reason="known")
def test_d(): assert 0
@pytest.mark.xfail(reason="known", run=False)
def test_e(): assert 0
def test_leak():
    if os.environ.get("LEAK")=="orphan":
        subprocess.run(["sh","-c","sleep 60 & "])
    if os.environ.get("LEAK")=="child":
        p=subprocess.Popen(["sleep","61"]); p.returncode=0
    if os.environ.get("LEAK")=="brief":
        p=subprocess.Popen(["sleep","1"]); p.returncode=0
    if os.environ.get("LEAK")=="fork":
        if os.fork()==0:
            if os.fork()==0:
                import time; time.sleep(60)
            os._exit(0)
        os.wait()
