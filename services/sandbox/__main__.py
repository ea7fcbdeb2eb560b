from beige.process import run
from services.sandbox.service import main

if __name__ == "__main__":
    run("sandbox", main)
